from dataclasses import replace
from typing import Any

from tidemill.wire.cell import CellKind, CellPhase, CellState, Role
from tidemill_rollout.conductor.cells import Cell, Reports
from tidemill_rollout.conductor.controller import destinations
from tidemill_rollout.conductor.progress import places


def cell(name: str, role: Role = Role.ROLLOUT, version: int = 3, **changes: Any) -> Cell:
    ordinal = int(name[-1])
    state = CellState(name, CellKind.SATELLITE, ordinal, "http://agent", CellPhase.READY, role, 5, 8, version, "digest")
    usual = Cell(name, ordinal, name.startswith("standalone"), 8, role, 5, (), 0.0, 5, state, 0.0, False)
    return replace(usual, **changes)


def with_phase(one: Cell, phase: CellPhase) -> Cell:
    assert one.state is not None
    return replace(one, state=CellState(one.name, one.state.kind, one.ordinal, "", phase, one.role, one.epoch, 8, one.state.policy_version))


def test_calls_go_to_those_that_stay_in_rollout_longest() -> None:
    cells = (cell("cell-0"), cell("cell-1"), cell("cell-2"), cell("standalone-0"))
    assert destinations(cells, ("cell-0",)) == ("standalone-0", "cell-2", "cell-1")
    assert destinations(cells, ("cell-0", "cell-1", "cell-2")) == ("standalone-0",)


def test_calls_never_go_to_cells_that_train_or_have_failed() -> None:
    cells = (cell("cell-0"), cell("cell-1", Role.TRAINING), with_phase(cell("cell-2"), CellPhase.FAILED), cell("cell-3"))
    assert destinations(cells, ("cell-0",)) == ("cell-3",)


def test_calls_never_go_to_cells_that_are_cordoned_or_leaving_the_core_included() -> None:
    cells = (
        with_phase(cell("cell-0"), CellPhase.LEAVING),
        cell("cell-1"),
        cell("cell-2", cordoned=True),
        with_phase(cell("cell-3"), CellPhase.LEAVING),
    )
    assert destinations(cells, ()) == ("cell-1",)
    assert places(cells, None) == 8


def test_only_what_will_not_come_back_gives_its_leases_away() -> None:
    assert with_phase(cell("cell-1"), CellPhase.FAILED).lost
    assert cell("cell-1", silent_seconds=100.0).lost
    assert not cell("cell-1", cordoned=True).lost
    assert not with_phase(cell("cell-1"), CellPhase.LEAVING).lost
    assert not cell("cell-0", silent_seconds=100.0).lost


def test_calls_go_last_to_a_cell_that_is_late() -> None:
    cells = (cell("cell-0"), cell("cell-1"), cell("cell-2", silent_seconds=20.0))
    assert destinations(cells, ("cell-0",)) == ("cell-1", "cell-2")


def test_a_cell_is_late_when_its_agent_says_nothing_or_its_role_is_long_in_coming_but_a_slow_flip_into_training_is_not() -> None:
    assert not cell("cell-1", waited_seconds=100.0).late, "it has settled"
    returning = with_phase(cell("cell-1"), CellPhase.FLIPPING)
    assert not replace(returning, waited_seconds=14.0).late
    assert replace(returning, waited_seconds=16.0).late
    leaving = replace(returning, role=Role.TRAINING, waited_seconds=500.0)
    assert not replace(leaving, acknowledged_epoch=4).late
    assert replace(leaving, acknowledged_epoch=4, silent_seconds=16.0).late
    assert leaving.late, "it was in training, and its trainer restarts"


def test_how_long_a_role_is_in_coming_is_counted_from_its_grant_or_from_when_it_was_last_in_effect() -> None:
    reports = Reports(since=100.0)
    state = cell("cell-1").state
    assert state is not None
    assert reports.waited_seconds("cell-1", 5, 90.0, now=130.0) == 30.0
    reports.note(state, 120.0)
    assert reports.waited_seconds("cell-1", 5, 90.0, now=130.0) == 10.0
    assert reports.waited_seconds("cell-1", 6, 125.0, now=130.0) == 5.0
    reports.note(state, 129.0)
    assert reports.waited_seconds("cell-1", 6, 125.0, now=150.0) == 25.0, "it goes on saying that it is in the role before"


def test_executions_are_started_only_where_calls_are_taken() -> None:
    starting = with_phase(cell("cell-1"), CellPhase.STARTING)
    assert places((cell("cell-0"), starting, cell("cell-2", Role.TRAINING)), None) == 8
    assert places((cell("cell-0", version=-1),), None) == 0
    assert places((cell("cell-0"), cell("cell-1", silent_seconds=100.0)), None) == 8


def test_a_cell_whose_weights_are_not_the_published_ones_gets_no_executions() -> None:
    assert places((cell("cell-0"), cell("cell-1", serves_wrong_weights=True)), None) == 8


def test_a_measurement_waits_for_every_cell_to_load_its_version() -> None:
    assert places((cell("cell-0"), cell("cell-1", version=2)), 3) == 0
    assert places((cell("cell-0"), cell("cell-1"), cell("cell-2", Role.TRAINING, version=2)), 3) == 16
    assert places((cell("cell-0"), cell("cell-1"), with_phase(cell("cell-2", waited_seconds=20.0), CellPhase.STARTING)), 3) == 16
    dead = with_phase(cell("cell-2", version=2), CellPhase.FAILED)
    assert places((cell("cell-0"), cell("cell-1"), dead), 3) == 16
