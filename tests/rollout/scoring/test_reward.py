"""Reward files, good and bad."""

import os
from pathlib import Path

import pytest

from tidemill_rollout.scoring.reward import RewardError, read_reward


def test_reward_json_wins_over_reward_txt(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("0.25\n")
    assert read_reward(tmp_path) == 0.25
    (tmp_path / "reward.json").write_text('{"reward": 0.75, "style": 1}')
    assert read_reward(tmp_path) == 0.75


def test_a_broken_reward_json_is_not_replaced_by_reward_txt(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    (tmp_path / "reward.json").write_text("")
    with pytest.raises(RewardError, match="is not JSON"):
        read_reward(tmp_path)


@pytest.mark.parametrize(("text", "value"), [('{"reward": 1}', 1.0), ('{"accuracy": 0.5}', 0.5), ('{"reward": true}', 1.0), ('{"reward": -2}', -2.0)])
def test_forms_of_reward_json(tmp_path: Path, text: str, value: float) -> None:
    (tmp_path / "reward.json").write_text(text)
    assert read_reward(tmp_path) == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"reward": NaN}', "the reward is nan, it must be finite"),
        ('{"reward": Infinity}', "must be finite"),
        ('{"reward": 1e999}', "must be finite"),
        ('{"reward": "1"}', "not an object of numbers"),
        ("1.0", "not an object of numbers"),
        ('{"a": 1, "b": 0}', 'of the rewards a, b none is called "reward"'),
        ("{}", r'of the rewards \(none\) none is called "reward"'),
        ('{"reward": 1' + "0" * 400 + "}", "too large"),
        ('{"reward": 1e200}', r"the reward is 1e\+200, it must lie between -1e\+06 and 1e\+06"),
        ('{"reward": -1000001}', "must lie between"),
        ("[" * 20_000 + "]" * 20_000, "is not JSON"),
        ('{"a":' * 10_000, "is not JSON"),
    ],
)
def test_what_is_no_reward_in_json(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "reward.json").write_text(text)
    with pytest.raises(RewardError, match=complaint):
        read_reward(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("nan", "must be finite"), ("-inf", "must be finite"), ("", "is not a number"), ("good", "'good' is not a number")]
    + [(text, "is not a number") for text in ("1_000", "\u0661\u0662", "0x10", "1 2", "1e", ".", "\ufeff1")]
    + [("1e200", "must lie between"), ("1e309", "must be finite")],
)
def test_what_is_no_reward_in_text(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "reward.txt").write_text(text)
    with pytest.raises(RewardError, match=complaint):
        read_reward(tmp_path)


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), (" \n-0.5\n", -0.5), ("+.5", 0.5), ("2.", 2.0), ("1E3", 1000.0), ("1000000", 1e6)])
def test_forms_of_reward_txt(tmp_path: Path, text: str, value: float) -> None:
    (tmp_path / "reward.txt").write_text(text)
    assert read_reward(tmp_path) == value


def test_a_folder_that_is_a_link_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "reward.txt").write_text("a secret")
    (tmp_path / "verifier").symlink_to("host")
    with pytest.raises(RewardError, match="verifier is not a folder") as refusal:
        read_reward(tmp_path / "verifier")
    assert "secret" not in str(refusal.value)


def test_no_file_is_no_reward(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="neither"):
        read_reward(tmp_path)
    with pytest.raises(RewardError, match="neither"):
        read_reward(tmp_path / "gone")


def test_links_pipes_folders_and_giants_are_not_read(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("1")
    reward = tmp_path / "reward.txt"
    reward.symlink_to(elsewhere)
    with pytest.raises(RewardError):
        read_reward(tmp_path)
    reward.unlink()
    os.mkfifo(reward)
    with pytest.raises(RewardError, match="not a file"):
        read_reward(tmp_path)
    reward.unlink()
    reward.mkdir()
    with pytest.raises(RewardError, match="not a file"):
        read_reward(tmp_path)
    reward.rmdir()
    reward.write_bytes(b"\xff\xfe")
    with pytest.raises(RewardError, match="UTF-8"):
        read_reward(tmp_path)
    reward.write_text("1" * 100_000)
    with pytest.raises(RewardError, match="longer than"):
        read_reward(tmp_path)
