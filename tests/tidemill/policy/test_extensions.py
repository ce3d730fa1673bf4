"""Each extension by itself: what it changes, refuses or adds; and that nothing is on unless it is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.policy.burst import Plan
from tidemill.policy.burst import groups_to_dispatch as at_the_boundary
from tidemill.policy.decide import Mode, keeps_training, to_train
from tidemill.policy.extensions import Extension, Rules, leaving, returning, seen, staying
from tidemill.policy.forecast import Forecast
from tidemill.policy.outlook import Outlook
from tidemill.policy.refill import groups_to_dispatch
from tidemill.policy.tide import CellView, Tide

PLAN = Plan(groups_per_step=4, steps_per_burst=2, prefetch_steps=1, steps=12)


def tide(unfinished: int, *in_rollout: bool, ready: int = 0, settled: bool = True) -> Tide:
    """Cells of capacity 8."""
    return Tide(unfinished, 0, tuple(CellView(f"cell-{n}", 8, role, settled) for n, role in enumerate(in_rollout)), ready_groups=ready, groups_due=4)


def on(*extensions: Extension) -> Rules:
    return Rules(Mode.ELASTIC, extensions=frozenset(extensions))


@given(
    st.sampled_from(Mode),
    st.integers(0, 40),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.integers(0, 9),
    st.frozensets(st.sampled_from(Extension)),
    st.integers(0, 40),
)
def test_without_extensions_and_in_the_baselines_the_published_rule_decides(
    mode: Mode, unfinished: int, roles: list[bool], ready: int, extensions: frozenset[Extension], pending: int
) -> None:
    reading = tide(unfinished, *roles, ready=ready)
    rules = Rules(mode, 1, extensions if mode is not Mode.ELASTIC else frozenset())
    outlook = Outlook(pending=pending, ending_soon=3, due_seconds=1.0, peak_load=2.0, idle_cells=("cell-1",))
    assert leaving(rules, reading, outlook) == to_train(mode, reading, 1)
    assert staying(rules, reading, 4, outlook) == keeps_training(mode, reading, 4, 1)
    assert returning(rules, reading, outlook) == ()


@pytest.mark.parametrize(
    ("extension", "outlook", "level", "capacity"),
    [
        (Extension.STARTED_ONLY, Outlook(pending=5), 15, 24),
        (Extension.STARTED_ONLY, Outlook(pending=20), 1, 24),
        (Extension.REMAINING_WORK, Outlook(ending_soon=4), 16, 24),
        (Extension.OVERSUBSCRIBE, Outlook(peak_load=1.5), 20, 36),
        (Extension.OVERSUBSCRIBE, Outlook(peak_load=0.5), 20, 24),
        (Extension.GAIN_GATE, Outlook(pending=5, ending_soon=4, peak_load=2.0), 20, 24),
    ],
)
def test_what_the_rule_is_made_to_see(extension: Extension, outlook: Outlook, level: int, capacity: int) -> None:
    reading = seen(on(extension), tide(20, True, True, True), outlook)
    assert (reading.waterlevel, reading.rollout_capacity) == (level, capacity)


@given(st.integers(0, 40), st.integers(0, 60), st.integers(0, 60))
def test_while_an_execution_is_unfinished_somebody_is_left_to_serve_it(unfinished: int, pending: int, ending: int) -> None:
    rules = on(Extension.STARTED_ONLY, Extension.REMAINING_WORK)
    reading = seen(rules, tide(unfinished, True, True), Outlook(pending=pending, ending_soon=ending))
    assert reading.waterlevel >= min(1, unfinished)


def test_a_gain_gate_lets_a_satellite_leave_only_for_more_than_its_flips_cost() -> None:
    """One cell trains; 40 s are due: a second one with a flip of 4 s ends at (40 + 4) / 2, so it saves 18 s."""
    reading = tide(0, False, True, True)
    assert leaving(on(Extension.GAIN_GATE), reading, Outlook(due_seconds=40.0, flip_seconds=4.0, return_seconds=17.0)) == ("cell-1",)
    assert leaving(on(Extension.GAIN_GATE), reading, Outlook(due_seconds=40.0, flip_seconds=4.0, return_seconds=19.0)) == ()
    assert leaving(on(Extension.GAIN_GATE), tide(0, True, True), Outlook(flip_seconds=9.0)) == ("cell-0",), "without the core nothing is trained"


def test_no_more_cells_train_than_end_the_burst_in_time() -> None:
    reading = tide(0, False, True, True)
    assert leaving(on(Extension.TRAINING_CELLS), reading, Outlook(due_seconds=30.0, next_burst_seconds=31.0)) == ()
    assert leaving(on(Extension.TRAINING_CELLS), reading, Outlook(due_seconds=30.0, next_burst_seconds=29.0)) == ("cell-1",)
    assert leaving(on(Extension.TRAINING_CELLS), tide(0, True, True), Outlook()) == ("cell-0",)


@pytest.mark.parametrize(
    ("reading", "outlook", "expected"),
    [
        (tide(20, False, False, True), Outlook(pending=3, idle_cells=("cell-1",), next_ready_seconds=9.0), ("cell-1",)),
        (tide(20, False, False, True), Outlook(pending=0, idle_cells=("cell-1",), next_ready_seconds=9.0), ()),
        (tide(20, False, False, True), Outlook(pending=3, idle_cells=("cell-1",), next_ready_seconds=9.0, backlog_seconds=1.0), ()),
        (tide(20, False, False, True), Outlook(pending=3, idle_cells=("cell-0",), next_ready_seconds=9.0), ()),
        (tide(20, False, True, True), Outlook(pending=3, idle_cells=("cell-0",), next_ready_seconds=9.0), ()),
        (tide(20, False, False, True), Outlook(pending=3, idle_cells=("cell-1",), next_ready_seconds=5.0, flip_seconds=3.0, return_seconds=2.0), ()),
        (tide(20, False, False, True, settled=False), Outlook(pending=3, idle_cells=("cell-1",), next_ready_seconds=9.0), ()),
    ],
)
def test_who_returns_early(reading: Tide, outlook: Outlook, expected: tuple[str, ...]) -> None:
    assert returning(on(Extension.EARLY_RETURN), reading, outlook) == expected


@pytest.mark.parametrize(
    ("reading", "backlog", "expected"),
    [
        (tide(8, False, False, True, ready=4), 100.0, ("cell-0", "cell-1")),
        (tide(9, False, False, True, ready=4), 100.0, ("cell-0",)),
        (tide(8, False, False, True, ready=4), 9.0, ("cell-0",)),
        (tide(8, False, False, True, ready=3), 100.0, ()),
        (tide(0, False, False, False, ready=4), 100.0, ("cell-0", "cell-1", "cell-2")),
        (tide(17, False, True, True, ready=4), 100.0, ()),
    ],
)
def test_who_stays_when_a_burst_ends(reading: Tide, backlog: float, expected: tuple[str, ...]) -> None:
    outlook = Outlook(backlog_seconds=backlog, flip_seconds=3.0, return_seconds=2.0)
    assert staying(on(Extension.STAY), reading, 4, outlook) == expected


def test_refill_dispatches_what_is_missing_as_far_as_the_bound_has_places() -> None:
    assert groups_to_dispatch(PLAN, 1, outstanding_groups=8, waiting_groups=8, places_left=4, bound=1) == 4
    assert groups_to_dispatch(PLAN, 1, outstanding_groups=8, waiting_groups=11, places_left=4, bound=1) == 1
    assert groups_to_dispatch(PLAN, 1, outstanding_groups=8, waiting_groups=12, places_left=4, bound=1) == 0


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 6), st.integers(1, 20))
def test_at_the_start_of_a_job_refill_dispatches_what_the_boundary_rule_does(groups: int, mu: int, phi: int, steps: int) -> None:
    plan = Plan(groups, mu, phi, steps)
    bound = -(-phi // mu)
    assert groups_to_dispatch(plan, 0, 0, 0, places_left=mu * groups, bound=bound) == at_the_boundary(plan, 0, 0)


def test_a_forecast_is_the_median_of_what_took_longer_and_of_the_same_task_when_enough_is_known() -> None:
    forecast = Forecast()
    assert forecast.remaining_seconds("a", 0.0) is None
    for seconds in (10.0, 20.0, 40.0):
        forecast.note("b", seconds)
    assert forecast.remaining_seconds("a", 15.0) == 25.0
    for seconds in (1.0, 2.0, 3.0, 4.0):
        forecast.note("a", seconds)
    assert forecast.remaining_seconds("a", 1.5) == 1.5
    assert forecast.remaining_seconds("a", 4.0) is None
