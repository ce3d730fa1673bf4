from hypothesis import given
from hypothesis import strategies as st

from tidemill.policy.burst import Plan, groups_to_dispatch, steps_in_burst


def test_a_burst_dispatches_until_phi_plus_mu_steps_of_groups_are_outstanding() -> None:
    plan = Plan(groups_per_step=4, steps_per_burst=2, prefetch_steps=1, steps=12)
    assert groups_to_dispatch(plan, committed_steps=0, outstanding_groups=0) == 12
    assert groups_to_dispatch(plan, committed_steps=2, outstanding_groups=4) == 8


def test_no_more_is_dispatched_than_the_job_still_trains() -> None:
    plan = Plan(groups_per_step=4, steps_per_burst=2, prefetch_steps=1, steps=3)
    assert groups_to_dispatch(plan, committed_steps=2, outstanding_groups=4) == 0
    assert steps_in_burst(plan, steps_before=2) == 1


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4), st.integers(1, 20))
def test_a_job_without_losses_dispatches_exactly_what_it_trains(groups: int, mu: int, phi: int, steps: int) -> None:
    plan = Plan(groups, mu, phi, steps)
    committed = outstanding = dispatched = 0
    while committed < steps:
        new = groups_to_dispatch(plan, committed, outstanding)
        dispatched += new
        outstanding += new
        assert outstanding <= (phi + mu) * groups
        part = steps_in_burst(plan, committed)
        assert outstanding >= part * groups
        committed += part
        outstanding -= part * groups
    assert (dispatched, outstanding) == (steps * groups, 0)
