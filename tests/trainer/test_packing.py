"""A micro-step is cut into passes that hold what begins alike together."""

from hypothesis import given
from hypothesis import strategies as st

from tidemill.trajectory.packing import SHARING, pack
from tidemill_trainer.packing import passes

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@given(st.lists(tokens, min_size=1, max_size=12), st.integers(1, 30))
def test_passes_hold_each_sequence_once_and_are_no_longer_than_allowed(sequences: list[tuple[int, ...]], most: int) -> None:
    cut = passes(sequences, most)
    assert sorted(i for one in cut for i in one) == list(range(len(sequences)))
    for one in cut:
        computed, longest = len(pack([sequences[i] for i in one], 1).token_ids), max(len(sequences[i]) for i in one)
        assert computed <= most or longest > most
        assert computed <= max(most, SHARING * longest)


def test_branches_of_one_long_trunk_are_computed_with_it() -> None:
    trunk = tuple(range(1000))
    branches = [(*trunk, *range(2000 * n, 2000 * n + 100)) for n in range(1, 6)]
    assert passes(branches, 64) == [[0, 1, 2, 3, 4]]
    assert passes([*branches, tuple(range(7, 900))], 64) == [[0, 1, 2, 3, 4], [5]]
    assert len(passes([(*trunk, n, *range(1200)) for n in range(5)], 64)) == 5, "what they add is most of them"
