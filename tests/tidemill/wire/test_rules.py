from dataclasses import dataclass
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.conductor.world import settings
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import REAL, Extension
from tidemill.wire.cell import CellKind, CellPhase, CellState, Role
from tidemill.wire.conductor import CellTide, JobPhase, Published, Tide
from tidemill.wire.rules import for_rules, wanted
from tidemill_rollout.conductor import bursts, cells, conditions, controller, executions, groups, job, tide
from tidemill_rollout.conductor.store import Database, Store

NOW = 1000.0


@dataclass(frozen=True)
class Told:
    """What is true of one cell."""

    trains: bool
    phase: CellPhase | None  # None: its agent has said nothing
    late: bool  # has acknowledged the epoch before
    silent_seconds: float
    granted_seconds: float  # ago
    pin: Role | None
    cordon: bool
    capacity: int


TOLD = st.builds(
    Told,
    trains=st.booleans(),
    phase=st.sampled_from([*CellPhase, None]),
    late=st.booleans(),
    silent_seconds=st.sampled_from([0.0, 20.0, 100.0]),
    granted_seconds=st.sampled_from([0.0, 20.0]),
    pin=st.sampled_from([None, *Role]),
    cordon=st.booleans(),
    capacity=st.integers(1, 16),
)


def tell(db: Database, reports: cells.Reports, name: str, told: Told) -> None:
    if told.trains and not name.startswith("standalone"):
        cells.grant(db, name, Role.TRAINING, (), NOW - told.granted_seconds)
    if told.phase is not None:
        grant = cells.current_grant(db, name)
        state = CellState(name, CellKind.SATELLITE, 0, "", told.phase, grant.role, grant.epoch - told.late, told.capacity)
        cells.note_report(db, state, NOW)
        reports.last[name] = (state, NOW - told.silent_seconds)
    cells.constrain(db, name, told.pin, told.cordon)


@given(
    st.lists(TOLD, min_size=1, max_size=4),
    st.lists(TOLD, max_size=2),
    st.lists(st.booleans(), max_size=12),
    st.booleans(),
    st.sampled_from(Mode),
    st.frozensets(st.sampled_from(sorted(REAL))),
)
def test_whoever_reads_the_tide_decides_by_the_same_figures_as_the_conductor(
    flipping: list[Told], pool: list[Told], scored: list[bool], published: bool, mode: Mode, extensions: frozenset[Extension]
) -> None:
    how = settings(cells=len(flipping), standalone=len(pool), mode=mode, extensions=extensions)
    store = Store(Path(":memory:"))
    reports = cells.Reports(since=NOW - 30)
    with store.transaction() as db:
        job.open_job(db, how, NOW)
        if published:
            bursts.publish(db, Published(0, 0, "digest"), NOW)
            bursts.begin(db, how, ("task",), NOW)
        for execution, good in zip(executions.start(db, len(scored), NOW), scored, strict=False):
            if good:
                executions.evaluate(db, execution.id, execution.attempt)
                executions.score(db, execution.id, execution.attempt, 1.0, "", NOW)
        groups.settle(db, NOW)
        for number, told in enumerate(flipping):
            tell(db, reports, f"cell-{number}", told)
        for number, told in enumerate(pool):
            tell(db, reports, f"standalone-{number}", told)
        known = cells.read(db, reports, NOW)
        reading = tide.for_all(db, how, known, conditions.Conditions(), "operator", 7, NOW)
        assert for_rules(reading) == tide.for_rules(db, how, known)
        heard = msgspec.json.decode(msgspec.json.encode(reading), type=Tide)
        returning, leaving = (decide(db, how, known, NOW) for decide in (controller.may_return, controller.may_leave))
        expected = [(name, Role.ROLLOUT) for name in returning] or [(name, Role.TRAINING) for name in leaving]
        assert list(wanted(heard, how.async_training_cells)) == expected
    store.close()


def test_standalone_cells_lend_their_capacity_and_are_not_among_those_that_flip() -> None:
    flipping = CellTide("cell-0", 0, 8, Role.TRAINING, 2, settled=True, pinned=Role.TRAINING)
    pool = (
        CellTide("standalone-0", 0, 4, Role.ROLLOUT, 1, standalone=True),
        CellTide("standalone-1", 1, 4, Role.ROLLOUT, 1, standalone=True, usable=False),
    )
    reading = for_rules(Tide(1, "j", "Elastic", JobPhase.RUNNING, 0, 4, 1, 0, 9, 9, 3, 2, 0, (flipping, *pool), groups_due=6))
    assert [c.name for c in reading.cells] == ["cell-0"]
    assert (reading.standalone_capacity, reading.waterlevel, reading.ready_groups, reading.groups_due) == (4, 6, 2, 6)
    assert not reading.cells[0].in_rollout
