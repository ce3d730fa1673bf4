from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tidemill.policy.burst import Plan, groups_to_dispatch, steps_in_burst
from tidemill.policy.staleness import default_bound, may_take, within


def test_the_default_bound_is_what_prefetching_makes_stale() -> None:
    assert [default_bound(phi, 2) for phi in (0, 1, 2, 3)] == [0, 1, 1, 2]


def test_a_new_group_does_not_take_the_last_place_of_one_that_would_become_too_old() -> None:
    waiting = (0, 1, 1)  # versions; 0 must be trained in this burst
    assert may_take(1, waiting, version=1, bound=1, places=2, groups_per_burst=4)
    assert not may_take(1, waiting, version=1, bound=1, places=1, groups_per_burst=4)
    assert may_take(0, waiting, version=1, bound=1, places=1, groups_per_burst=4)


def test_places_of_later_bursts_are_counted_too() -> None:
    assert not may_take(2, (1, 1, 1, 2), version=2, bound=2, places=1, groups_per_burst=2)
    assert may_take(2, (1, 1, 1, 2), version=2, bound=2, places=2, groups_per_burst=2)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), st.integers(1, 14), st.integers(0, 2), st.randoms(use_true_random=False))
def test_in_whatever_order_groups_become_ready_the_bound_holds_and_nothing_waits_for_ever(
    groups: int, mu: int, phi: int, steps: int, slack: int, random: Random
) -> None:
    plan = Plan(groups, mu, phi, steps)
    bound = default_bound(phi, mu) + slack
    running: list[int] = []  # versions
    ready: list[int] = []
    committed = version = 0
    while committed < steps:
        running += [version] * groups_to_dispatch(plan, committed, len(running) + len(ready))
        places = steps_in_burst(plan, committed) * groups
        while places:
            chosen = next(
                (v for v in sorted(ready) if may_take(v, running + ready, version=version, bound=bound, places=places, groups_per_burst=mu * groups)),
                None,
            )
            if chosen is None:
                assert running, "ready groups, free places, and none may take one"
                ready.append(running.pop(random.randrange(len(running))))
                continue
            ready.remove(chosen)
            assert within(version, chosen, bound)
            places -= 1
        committed += steps_in_burst(plan, committed)
        version += 1
