import pytest

from tidemill.policy.decide import Mode, keeps_training, to_train
from tidemill.policy.tide import CellView, Tide


def tide(unfinished: int, *in_rollout: bool, due: int = 4, ready: int = 0, standalone: int = 0, settled: bool = True) -> Tide:
    cells = tuple(CellView(f"cell-{n}", 8, role, settled) for n, role in enumerate(in_rollout))
    return Tide(unfinished, 0, cells, standalone, ready, due)


@pytest.mark.parametrize("mode", Mode)
def test_nobody_flips_when_the_burst_has_nothing_left_to_train(mode: Mode) -> None:
    assert to_train(mode, tide(0, True, True, True, due=0)) == ()


@pytest.mark.parametrize(
    ("mode", "reading", "leaving"),
    [
        (Mode.ELASTIC, tide(16, True, True, True), ("cell-0",)),
        (Mode.ELASTIC, tide(17, True, True, True), ()),
        (Mode.COLOCATE, tide(1, True, True, True), ()),
        (Mode.COLOCATE, tide(0, True, True, True), ("cell-0", "cell-1", "cell-2")),
        (Mode.COLOCATE, tide(8, True, True, standalone=8), ("cell-0", "cell-1")),
        (Mode.COLOCATE, tide(0, True, True, settled=False), ()),
        (Mode.COLOCATE, tide(0, False, True), ()),
        (Mode.ASYNC, tide(24, True, True, True), ("cell-0", "cell-1")),
        (Mode.ASYNC, tide(24, False, True, True), ("cell-1",)),
        (Mode.ASYNC, tide(0, False, False, True), ()),
    ],
)
def test_who_leaves_rollout_in_each_mode(mode: Mode, reading: Tide, leaving: tuple[str, ...]) -> None:
    assert to_train(mode, reading, async_training_cells=2) == leaving


@pytest.mark.parametrize(
    ("mode", "reading", "staying"),
    [
        (Mode.ELASTIC, tide(8, False, False, True, ready=4), ("cell-0",)),
        (Mode.ELASTIC, tide(8, False, False, True, ready=3), ()),
        (Mode.ELASTIC, tide(17, False, True, True, ready=4), ()),
        (Mode.ELASTIC, tide(0, True, True, True, ready=4), ()),
        (Mode.COLOCATE, tide(0, False, False, ready=4), ()),
        (Mode.ASYNC, tide(9, False, False, True), ("cell-0", "cell-1")),
    ],
)
def test_who_keeps_training_when_a_burst_ends(mode: Mode, reading: Tide, staying: tuple[str, ...]) -> None:
    assert keeps_training(mode, reading, groups_per_step=4, async_training_cells=2) == staying


def test_a_failed_satellite_neither_trains_nor_holds_up_the_others() -> None:
    cells = (CellView("cell-0", 8, True), CellView("cell-1", 8, True, settled=False, usable=False), CellView("cell-2", 8, True))
    reading = Tide(0, 0, cells, groups_due=4)
    assert to_train(Mode.COLOCATE, reading) == ("cell-0", "cell-2")
    assert to_train(Mode.ASYNC, reading, async_training_cells=2) == ("cell-0",)
