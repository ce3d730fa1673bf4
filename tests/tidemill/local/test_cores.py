"""Cells get cores of their own where there are enough."""

from hypothesis import given
from hypothesis import strategies as st

from tidemill.local.cores import share_cores, share_gpus


@given(st.integers(1, 12), st.sets(st.integers(0, 63), min_size=1, max_size=64))
def test_shares_are_equal_and_disjoint_unless_said_to_be_shared(cells: int, cores: set[int]) -> None:
    dealt = share_cores(cells, tuple(sorted(cores)))
    assert len(dealt.shares) == cells
    assert len({len(s) for s in dealt.shares}) == 1
    assert dealt.shared == (len(cores) < cells)
    if not dealt.shared:
        assert len({c for share in dealt.shares for c in share}) == sum(len(s) for s in dealt.shares)


def test_gpus_are_dealt_out_whole() -> None:
    assert share_gpus(3, 8) == ((0, 1), (2, 3), (4, 5))
    assert share_gpus(2, 0) == ((), ())
