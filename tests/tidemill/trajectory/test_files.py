import contextlib
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.trajectory.files import UnknownFormat, read_trajectory, write_trajectory
from tidemill.trajectory.records import FORMAT_VERSION, Judgement, Piece, Trajectory, Turn

TURN = Turn("t1", "g1-0", 2, "", "", (1, 2), (Piece("cell-0", (3,), (-0.5,), (1,)),), "stop", 0.0, 1.0, "messages")
DATA = Path(__file__).with_name("data")


def trajectory(score: float | None = 1.0) -> Trajectory:
    return Trajectory(FORMAT_VERSION, "g1-0", 1, "sum", 2, 0, score, (TURN,))


def test_what_is_written_is_read_back_and_a_second_writing_replaces_it(tmp_path: Path) -> None:
    write_trajectory(tmp_path, trajectory(None))
    path = write_trajectory(tmp_path, trajectory())
    assert read_trajectory(path) == trajectory()
    assert [p.name for p in tmp_path.iterdir()] == ["g1-0.msgpack"]


def test_a_file_of_a_later_format_is_refused_by_name(tmp_path: Path) -> None:
    path = write_trajectory(tmp_path, msgspec.structs.replace(trajectory(), format=FORMAT_VERSION + 1))
    with pytest.raises(UnknownFormat, match=rf"g1-0\.msgpack: format {FORMAT_VERSION + 1}, this version reads up to {FORMAT_VERSION}"):
        read_trajectory(path)


def test_files_of_every_format_there_was_are_read() -> None:
    """The bytes were written by the versions that had these formats. Each tells the same execution, with what its format could say of it."""
    executions = [read_trajectory(path) for path in sorted(DATA.glob("format-*.msgpack"))]
    assert len(executions) == FORMAT_VERSION
    for one in executions:
        assert (one.format, one.execution, one.group, one.task, one.attempt) == (FORMAT_VERSION, "g7-2", 7, "sum-of-primes", 2)
        assert (one.dispatched_version, one.score) == (3, 0.5)
        first, second, sub_agent, empty = one.turns
        assert [turn.parent for turn in one.turns] == ["", first.id, "", second.id]
        assert (list(first.context_ids), list(first.sampled_ids)) == ([1, 2, 70000], [10, 11, 12])
        assert list(first.logprobs) == pytest.approx([-0.1, -2.5, -0.3])
        assert list(first.versions) == [3, 3, 4]
        assert [piece.cell for piece in first.pieces] == ["cell-0", "cell-1"]
        assert (list(second.sampled_ids), list(second.logprobs), second.finish_reason) == ([13, 14], [-0.0625, 0.0], "length")
        assert (sub_agent.agent, sub_agent.wire, sub_agent.started, sub_agent.ended) == ("agent-1", "messages", 1003.0, 1003.5)
        assert (list(empty.context_ids), empty.sampled, list(empty.sampled_ids), empty.wire) == ([], 0, [], "chat")


@pytest.mark.parametrize("token_ids", [b"\1\2\3", [2**31], ["a"], 3], ids=["half a number", "no 32 bits", "text", "no list"])
def test_columns_that_are_none_are_refused_as_any_other_damage(token_ids: object) -> None:
    raw = msgspec.msgpack.encode({"cell": "cell-0", "token_ids": token_ids, "logprobs": [0.0], "versions": [0]})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(raw, type=Piece)


def test_a_record_says_the_same_after_either_encoding_and_takes_what_its_numbers_take() -> None:
    turn = msgspec.structs.replace(TURN, context_ids=tuple(range(100_000)), asked={"temperature": 0.2}, given_by=("system", "user"))
    assert msgspec.json.decode(msgspec.json.encode(turn), type=Turn) == turn
    raw = msgspec.msgpack.encode(turn)
    assert msgspec.msgpack.decode(raw, type=Turn) == turn
    assert len(raw) < 400_000 + 500
    assert bytes(msgspec.msgpack.decode(raw, type=Turn).context_ids[:2]) == b"\0\0\0\0\1\0\0\0"  # little-endian, on every machine


def test_what_format_2_added_is_read() -> None:
    one = read_trajectory(DATA / "format-2.msgpack")
    assert one.ended == "ran into its time-out"
    assert one.judged == Judgement(True, "tests ended with exit code 0", "executions/g7-2/2/work", "blake2b:00ff", 2)
    assert [turn.given_by for turn in one.turns] == [("system", "user"), ("tool",), ("user",), ()]
    assert [turn.summary for turn in one.turns] == [False, False, False, True]
    assert (one.turns[0].asked, one.turns[2].parent_agent) == ({"temperature": 0.2}, "agent-0")


WHOLE = (DATA / "format-2.msgpack").read_bytes()


@given(st.one_of(st.binary(max_size=60), st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=9)).map(lambda at: _damaged(*at))))
def test_a_damaged_file_is_refused_or_read_and_nothing_else_happens(raw: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(raw)
        with contextlib.suppress(msgspec.MsgspecError, UnknownFormat):
            assert read_trajectory(Path(file.name)).format == FORMAT_VERSION


def _damaged(place: int, bytes_there: bytes) -> bytes:
    return WHOLE[:place] + bytes_there + WHOLE[place + len(bytes_there) :]


def test_a_file_nested_too_deep_is_refused_as_any_other_damage(tmp_path: Path) -> None:
    deep = WHOLE.replace(msgspec.msgpack.encode({"temperature": 0.2}), b"\x81\xa1a" * 100_000 + b"\x01")
    assert len(deep) > len(WHOLE)
    path = tmp_path / "deep.msgpack"
    path.write_bytes(deep)
    with pytest.raises(msgspec.MsgspecError):
        read_trajectory(path)


def test_another_field_is_another_format() -> None:
    """Then FORMAT_VERSION grows, data/ gets a file of the new format, and these lines say what it has."""
    fields = {struct.__name__: " ".join(struct.__struct_encode_fields__) for struct in (Piece, Turn, Judgement, Trajectory)}
    assert (FORMAT_VERSION, fields) == (
        2,
        {
            "Piece": "cell token_ids logprobs versions",
            "Turn": "id execution attempt parent agent context_ids pieces finish_reason started ended wire parent_agent summary asked given_by",
            "Judgement": "valid reason work digest evaluations",
            "Trajectory": "format execution group task attempt dispatched_version score turns ended judged",
        },
    )
