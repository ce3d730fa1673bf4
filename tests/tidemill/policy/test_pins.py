import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.policy.decide import Mode, keeps_training, to_train
from tidemill.policy.tide import CellView, Pin, Tide

R, T = Pin.ROLLOUT, Pin.TRAINING


def tide(
    unfinished: int,
    *pins: Pin | None,
    training: tuple[int, ...] = (),
    unusable: tuple[int, ...] = (),
    late: tuple[int, ...] = (),
    standalone: int = 0,
    ready: int = 0,
) -> Tide:
    """Cells of capacity 8."""
    cells = tuple(
        CellView(f"cell-{n}", 8, n not in training, settled=n not in late, usable=n not in unusable, pinned=pin, late=n in late)
        for n, pin in enumerate(pins)
    )
    return Tide(unfinished, 0, cells, standalone, ready_groups=ready, groups_due=4)


@pytest.mark.parametrize(
    ("mode", "reading", "leaving"),
    [
        (Mode.ELASTIC, tide(0, None, R, None, training=(0,)), ("cell-2",)),
        (Mode.ELASTIC, tide(0, None, R, training=(0,)), ()),
        (Mode.ELASTIC, tide(8, None, None, T, training=(0,)), ("cell-2",)),
        (Mode.ELASTIC, tide(9, None, None, T, training=(0,)), ()),
        (Mode.ELASTIC, tide(0, None, None, T, training=(0, 2)), ("cell-1",)),
        (Mode.ELASTIC, tide(16, T, None, T), ("cell-0",)),
        (Mode.COLOCATE, tide(8, None, R, None), ("cell-0", "cell-2")),
        (Mode.COLOCATE, tide(9, None, R, None), ()),
        (Mode.COLOCATE, tide(0, None, None, None, late=(1,)), ("cell-0", "cell-2")),
        (Mode.COLOCATE, tide(0, None, None, late=(0,)), ()),
        (Mode.ASYNC, tide(24, None, R, None), ("cell-0", "cell-2")),
        (Mode.ASYNC, tide(24, None, None, T), ("cell-0", "cell-2")),
    ],
)
def test_who_leaves_rollout_when_cells_are_pinned(mode: Mode, reading: Tide, leaving: tuple[str, ...]) -> None:
    assert to_train(mode, reading, async_training_cells=2) == leaving


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("reading", [tide(0, R, None, None), tide(0, None, None, None, unusable=(0,))], ids=["pinned", "cordoned"])
def test_without_the_core_nobody_trains(mode: Mode, reading: Tide) -> None:
    assert to_train(mode, reading, async_training_cells=2) == ()
    assert keeps_training(mode, reading, groups_per_step=4, async_training_cells=2) == ()


def test_at_the_end_of_a_burst_a_core_that_is_pinned_to_rollout_does_not_stay() -> None:
    assert keeps_training(Mode.ELASTIC, tide(0, None, None, training=(0,), ready=4), 4) == ("cell-0",)
    assert keeps_training(Mode.ELASTIC, tide(0, R, None, training=(0,), ready=4), 4) == ()


cells = st.lists(st.tuples(st.sampled_from([None, R, T]), st.sampled_from(["usable", "unusable", "late"])), min_size=1, max_size=7)


@given(cells, st.integers(0, 24), st.lists(st.integers(0, 5), max_size=40))
def test_the_training_cells_are_a_prefix_of_those_that_may_train_and_nobody_waits(
    described: list[tuple[Pin | None, str]], standalone: int, ends: list[int]
) -> None:
    pins = [pin for pin, _ in described]
    unusable, late = (tuple(n for n, (_, state) in enumerate(described) if state == what) for what in ("unusable", "late"))
    serving = [n for n, (_, state) in enumerate(described) if state == "usable"]
    unfinished, training = 8 * len(serving) + standalone, tuple[int, ...]()
    for ended in ends:
        unfinished = max(0, unfinished - ended)
        for name in to_train(Mode.ELASTIC, tide(unfinished, *pins, training=training, unusable=unusable, late=late, standalone=standalone)):
            training += (int(name.removeprefix("cell-")),)
        core, *satellites = range(len(pins))
        order = [core, *(n for n in satellites if pins[n] is T), *(n for n in satellites if pins[n] is None)]
        may_train = [] if core not in serving or pins[core] is R else [n for n in order if n in serving]
        assert list(training) == may_train[: len(training)]
        assert 8 * sum(n not in training for n in serving) + standalone >= unfinished
