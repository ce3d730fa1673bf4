from dataclasses import replace
from typing import Any

from tidemill.wire.cell import CellKind, CellPhase, CellState, Role
from tidemill_rollout.conductor.cells import Cell
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
    dead = with_phase(cell("cell-2", version=2), CellPhase.FAILED)
    assert places((cell("cell-0"), cell("cell-1"), dead), 3) == 16
