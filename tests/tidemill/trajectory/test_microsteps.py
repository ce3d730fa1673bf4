from hypothesis import given
from hypothesis import strategies as st

from tidemill.trajectory.microsteps import cut
from tidemill.trajectory.packing import SHARING, pack
from tidemill.trajectory.sequence import Sequence


def sequence(*token_ids: int) -> Sequence:
    number = len(token_ids)
    return Sequence("g1-0", token_ids, (True,) * number, (0.0,) * number, (0,) * number, (0.1,) * number)


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@given(st.lists(tokens, max_size=20), st.integers(1, 60))
def test_micro_steps_hold_every_sequence_once_in_order_and_stay_in_their_budget(rows: list[list[int]], budget: int) -> None:
    parts = cut([sequence(*row) for row in rows], budget)
    assert [list(s.token_ids) for part in parts for s in part] == rows
    for part in parts:
        computed, longest = len(pack([s.token_ids for s in part], 1).token_ids), max(len(s.token_ids) for s in part)
        assert sum(len(s.token_ids) for s in part) <= budget or computed <= SHARING * longest


def test_branches_of_one_long_trunk_stay_with_it() -> None:
    trunk = range(1000)
    branches = [sequence(*trunk, *range(2000 * n, 2000 * n + 100)) for n in range(1, 6)]
    assert [len(part) for part in cut(branches)] == [5], "1,500 tokens are computed, not 5,500"
    stranger = sequence(*range(5000, 6100))
    assert [len(part) for part in cut([*branches[:2], stranger, *branches[2:]])] == [2, 1, 3]


def test_what_adds_more_than_it_shares_does_not_wait_for_the_others() -> None:
    rows = [sequence(*range(1000), *range(2000 * n, 2000 * n + 1200)) for n in range(1, 4)]
    assert [len(part) for part in cut(rows)] == [1, 1, 1]
