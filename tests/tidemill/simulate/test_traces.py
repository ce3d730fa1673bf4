from pathlib import Path

import pytest

from tests.tidemill.simulate.jobs import even
from tidemill.simulate.costs import BadCosts, Costs, read_costs
from tidemill.simulate.durations import Durations
from tidemill.simulate.traces import BadTrace, GroupTrace, Trace, parse_trace, read_trace, write_trace

GOOD = [
    b'{"group": 0, "seconds": 6948.0, "tokens": 700000}',
    b'{"group": 0, "seconds": 1, "tokens": 2}',
    b"",
    b'{"group": 1, "seconds": 0, "tokens": 0}',
]


def test_lines_of_one_group_become_its_executions() -> None:
    trace = parse_trace([*GOOD, b'{"group": 1, "seconds": 3, "tokens": 4, "task": ""}'], "t")
    assert trace == Trace((GroupTrace((6948.0, 1.0), (700000.0, 2.0)), GroupTrace((0.0, 3.0), (0.0, 4.0))))


@pytest.mark.parametrize(
    ("lines", "where", "what"),
    [
        ([b'{"group": 1, "seconds": 1, "tokens": 1}'], "t:1:", "0 comes here"),
        ([*GOOD[:2], b'{"group": 2, "seconds": 1, "tokens": 1}'], "t:3:", "0 or 1 comes here"),
        ([*GOOD[:2], b'{"group": 1, "seconds": 1, "tokens": 1}', GOOD[0]], "t:4:", "1 or 2 comes here"),
        ([GOOD[0], b'{"group": 0, "seconds": -1, "tokens": 1}'], "t:2:", "seconds is -1"),
        ([b'{"group": 0, "seconds": 1, "tokens": -5}'], "t:1:", "tokens is -5"),
        ([b'{"group": 0, "seconds": NaN, "tokens": 1}'], "t:1:", "NaN"),
        ([b'{"group": 0, "seconds": 1e999, "tokens": 1}'], "t:1:", ""),
        ([b'{"group": 0, "seconds": "long", "tokens": 1}'], "t:1:", "Expected `float`"),
        ([b'{"group": 0, "seconds": 1}'], "t:1:", "tokens"),
        ([b"hello"], "t:1:", "JSON"),
        (GOOD, "t:4:", "group 1 ends here with 1 executions, but group 0 has 2"),
        ([], "t:1:", "holds no execution"),
    ],
)
def test_bad_traces_are_refused_with_the_line(lines: list[bytes], where: str, what: str) -> None:
    with pytest.raises(BadTrace) as refusal:
        parse_trace(lines, "t")
    assert str(refusal.value).startswith(where)
    assert what in str(refusal.value)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = Durations(60.0, 0.6, 0.3, tokens_per_execution=100.0).draw(5, 3, 1)
    write_trace(trace, tmp_path / "trace.jsonl")
    assert read_trace(tmp_path / "trace.jsonl") == trace


def test_a_missing_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"none\.jsonl: No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_a_job_that_needs_more_groups_meets_the_recorded_ones_again() -> None:
    trace = Trace((*even(1).groups, *even(1, seconds=20.0).groups))
    assert trace.group(3) == trace.groups[1]


def test_drawn_durations_have_the_mean_the_time_out_and_the_correlation_that_were_asked_for() -> None:
    free = Durations(100.0, 0.6, 0.5, tokens_per_execution=50.0).draw(4000, 4, 1)
    assert free.mean_seconds == pytest.approx(100.0, rel=0.03)
    assert free.mean_tokens == pytest.approx(50.0)
    cut = Durations(100.0, 0.6, 0.5, 120.0).draw(100, 4, 1)
    assert max(s for g in cut.groups for s in g.seconds) == 120.0

    def spread(correlation: float) -> float:
        groups = Durations(100.0, 0.6, correlation).draw(2000, 4, 1).groups
        return sum(max(g.seconds) - min(g.seconds) for g in groups)

    assert spread(0.9) < 0.5 * spread(0.0)
    assert Durations(1.0, 0.6, 0.3).draw(3, 2, 7) == Durations(1.0, 0.6, 0.3).draw(3, 2, 7)


def test_costs_are_read_by_their_published_names(tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text("trainTokensPerSecond: 50\nflipToTrainingSeconds: 8.5\nconcurrency: [[0.5, 1.0], [1.0, 0.8]]\n")
    assert read_costs(file) == Costs(50.0, flip_to_training_seconds=8.5, concurrency=((0.5, 1.0), (1.0, 0.8)))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("trainTokensPerSecond: 0", "trainTokensPerSecond: Input should be greater than 0"),
        ("{}", "trainTokensPerSecond: Field required"),
        ("trainTokensPerSecond: 1\nflipSeconds: 2", "flipSeconds: Extra inputs"),
        ("trainTokensPerSecond: .nan", "trainTokensPerSecond"),
        ("trainTokensPerSecond: 1\nconcurrency: [[1, 1], [0.5, 1]]", "do not increase"),
        ("[", "expected"),
    ],
)
def test_bad_costs_are_refused_by_field(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text(text)
    with pytest.raises(BadCosts) as refusal:
        read_costs(file)
    assert what in str(refusal.value)
