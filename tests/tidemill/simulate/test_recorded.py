"""One real job and its simulation side by side: decision by decision, under the recorded durations."""

from collections import defaultdict

import pytest

from tests.tidemill.simulate.replay import Extended, Recorded, Replay, recorded
from tidemill.simulate.result import Decision, Result


@pytest.fixture(scope="module")
def real() -> Recorded:
    return recorded("tiny-elastic")


@pytest.fixture(scope="module")
def simulated(real: Recorded) -> Result:
    return Replay(real).run()


def of(result: Result, *kinds: str) -> list[Decision]:
    return [d for d in result.decisions if d.kind in kinds]


def test_the_same_groups_are_dispatched_under_the_same_versions(real: Recorded, simulated: Result) -> None:
    expected = [f"group {g['id'] - 1} under version {g['version']}" for g in real.document["groups"]]
    assert [d.what for d in of(simulated, "dispatch")] == expected


def test_every_step_takes_the_same_groups(real: Recorded, simulated: Result) -> None:
    expected: defaultdict[int, set[int]] = defaultdict(set)
    for group in real.document["groups"]:
        expected[group["step"] + 1].add(group["id"] - 1)
    found: defaultdict[int, set[int]] = defaultdict(set)
    for decision in of(simulated, "take"):
        _, group, _, _, step = decision.what.split()
        found[int(step)].add(int(group))
    assert found == expected


def test_the_same_cells_leave_for_training_in_the_same_order_in_every_burst(real: Recorded, simulated: Result) -> None:
    ends = [p["time"] for p in real.document["publications"][1:]]

    def by_burst(flips: list[tuple[float, str]]) -> list[list[str]]:
        return [[cell for at, cell in flips if begin < at <= end] for begin, end in zip([0.0, *ends], ends, strict=False)]

    expected = by_burst([(f["began"], f["cell"]) for f in real.document["flips"] if f["to"] == "Training"])
    assert by_burst([(d.time, d.what) for d in of(simulated, "train")]) == expected
    assert sum(map(len, expected)) == 13, "the recording holds flips into training in every burst"


def test_the_same_cells_return_at_the_end_of_every_burst_and_the_core_stays_when_it_stayed(real: Recorded, simulated: Result) -> None:
    ends = [p["time"] for p in real.document["publications"][1:]]

    def at_ends(flips: list[tuple[float, str]]) -> list[set[str]]:
        return [{cell for at, cell in flips if end <= at < end + 1} for end in ends]

    expected = at_ends([(f["began"], f["cell"]) for f in real.document["flips"] if f["to"] == "Rollout"])
    assert at_ends([(d.time, d.what) for d in of(simulated, "return")]) == expected
    assert ["cell-0" in cells for cells in expected] == [False, True, False, True, True, True], "the recording holds bursts of both kinds"


def test_executions_start_when_they_did(real: Recorded, simulated: Result) -> None:
    """Places, not only the order of dispatch, decide when: within what a real flip's message takes."""
    started = {(e["group"] - 1, int(e["id"].split("-")[1])): e["started"] for e in real.document["executions"]}
    again = Replay(real)
    again.run()
    assert again.starts.keys() == started.keys()
    assert max(abs(again.starts[key] - started[key]) for key in started) < 0.5


def test_with_refill_and_the_extensions_of_real_jobs_the_decisions_are_the_same() -> None:
    """Of a run in the conductor's fake world. The conductor decided by what it had measured until then, the simulation by its costs."""
    extended = Extended(recorded("world-extended").document)
    result = Replay(extended).run()
    versions = [int(d.what.split()[-1]) for d in of(result, "dispatch")]
    later = [g["version"] - version for g, version in zip(extended.document["groups"], versions, strict=True)]
    assert later == [0] * 12 + [1, 1, 0, 0], "two were dispatched just after a publication that the simulation makes just after them"
    flips: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for decision in of(result, "train", "return"):
        flips[decision.what].append(({"train": "Training", "return": "Rollout"}[decision.kind], decision.time))
    for cell, decided in flips.items():
        real = [(f["to"], f["began"]) for f in extended.document["flips"] if f["cell"] == cell]
        assert [to for to, _ in decided] == [to for to, _ in real]
        assert max(abs(at - began) for (_, at), (_, began) in zip(decided, real, strict=True)) < 0.5
    assert sum(map(len, flips.values())) == len(extended.document["flips"])
