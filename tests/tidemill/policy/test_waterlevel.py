from hypothesis import given
from hypothesis import strategies as st

from tidemill.policy.tide import CellView, Tide
from tidemill.policy.waterlevel import core_stays, next_to_train


def tide(unfinished: int, *in_rollout: bool, standalone: int = 0, ready: int = 0) -> Tide:
    """Cells of capacity 8."""
    cells = tuple(CellView(f"cell-{n}", 8, role) for n, role in enumerate(in_rollout))
    return Tide(100 + unfinished, 100, cells, standalone_capacity=standalone, ready_groups=ready, groups_due=4)


def leaver(reading: Tide) -> str | None:
    cell = next_to_train(reading)
    return cell.name if cell else None


def test_the_core_leaves_first_and_only_when_the_rest_can_carry_the_load() -> None:
    assert leaver(tide(17, True, True, True)) is None
    assert leaver(tide(16, True, True, True)) == "cell-0"


def test_the_next_cell_leaves_when_the_remaining_ones_can_carry_the_load() -> None:
    assert leaver(tide(9, False, True, True)) is None
    assert leaver(tide(8, False, True, True)) == "cell-1"
    assert leaver(tide(1, False, False, True)) is None
    assert leaver(tide(0, False, False, True)) == "cell-2"


def test_the_standalone_pool_carries_load_and_never_leaves() -> None:
    assert leaver(tide(24, True, True, standalone=16)) == "cell-0"
    assert leaver(tide(0, False, False, standalone=16)) is None


def test_one_cell_at_a_time_the_next_waits_until_the_last_has_settled() -> None:
    moving = Tide(0, 0, (CellView("cell-0", 8, False, settled=False), CellView("cell-1", 8, True)))
    assert next_to_train(moving) is None


def test_a_cell_that_has_failed_serves_nothing_is_passed_over_and_holds_nobody_up() -> None:
    cells = (
        CellView("cell-0", 8, False),
        CellView("cell-1", 8, True, settled=False, usable=False),
        CellView("cell-2", 8, True),
        CellView("cell-3", 8, True),
    )
    assert leaver(Tide(8, 0, cells)) == "cell-2"
    assert leaver(Tide(9, 0, cells)) is None


def test_a_cell_on_its_way_back_is_waited_for_until_it_is_late_and_then_counts_for_nothing_and_is_passed_over() -> None:
    def reading(unfinished: int, late: bool) -> Tide:
        back = CellView("cell-1", 8, True, settled=False, late=late)
        return Tide(unfinished, 0, (CellView("cell-0", 8, False), back, CellView("cell-2", 8, True), CellView("cell-3", 8, True)), groups_due=4)

    assert leaver(reading(0, late=False)) is None
    assert leaver(reading(8, late=True)) == "cell-2"
    assert leaver(reading(9, late=True)) is None


def test_nobody_leaves_before_a_core_that_is_late_and_a_late_cell_in_training_is_in_nobodys_way() -> None:
    core = CellView("cell-0", 8, True, settled=False, late=True)
    assert next_to_train(Tide(0, 0, (core, CellView("cell-1", 8, True)), groups_due=4)) is None
    mute = CellView("cell-0", 8, False, settled=False, late=True)
    assert leaver(Tide(8, 0, (mute, CellView("cell-1", 8, True), CellView("cell-2", 8, True)), groups_due=4)) == "cell-1"


def test_a_late_cell_carries_nothing_for_a_core_that_would_stay() -> None:
    cells = (CellView("cell-0", 8, False), CellView("cell-1", 8, True, settled=False, late=True), CellView("cell-2", 8, True))
    assert core_stays(Tide(8, 0, cells, ready_groups=4), groups_per_step=4)
    assert not core_stays(Tide(9, 0, cells, ready_groups=4), groups_per_step=4)


def test_the_core_stays_over_the_end_of_a_burst_only_when_work_is_ready_and_the_others_carry_the_load() -> None:
    assert core_stays(tide(16, False, True, True, ready=4), groups_per_step=4)
    assert not core_stays(tide(16, False, True, True, ready=3), groups_per_step=4)
    assert not core_stays(tide(17, False, True, True, ready=4), groups_per_step=4)


@given(st.integers(0, 64), st.lists(st.booleans(), max_size=8), st.integers(0, 16))
def test_whoever_leaves_nobody_waits(unfinished: int, roles: list[bool], standalone: int) -> None:
    reading = tide(unfinished, *roles, standalone=standalone)
    cell = next_to_train(reading)
    if cell:
        assert reading.rollout_capacity - cell.capacity >= unfinished


@given(st.integers(1, 8), st.integers(0, 24), st.lists(st.integers(0, 5), max_size=40))
def test_while_the_waterlevel_falls_the_training_cells_are_always_a_prefix(cells: int, standalone: int, ends: list[int]) -> None:
    unfinished, roles = 8 * cells + standalone, [True] * cells
    for ended in ends:
        unfinished = max(0, unfinished - ended)
        name = leaver(tide(unfinished, *roles, standalone=standalone))
        if name:
            roles[int(name.removeprefix("cell-"))] = False
        assert roles == sorted(roles)
        assert 8 * sum(roles) + standalone >= unfinished
