"""The packed tree holds every sequence completely, and a shared prefix once."""

from hypothesis import given
from hypothesis import strategies as st

from tidemill.trajectory.packing import pack

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


@given(st.lists(tokens, min_size=1, max_size=8), st.integers(1, 6))
def test_every_sequence_is_found_again_with_its_positions_along_its_ancestors(sequences: list[tuple[int, ...]], shortest: int) -> None:
    packed = pack(sequences, shortest)
    for sequence, places in zip(sequences, packed.places, strict=True):
        assert tuple(packed.token_ids[p] for p in places) == sequence
        assert tuple(packed.positions[p] for p in places) == tuple(range(len(sequence)))
    assert sum(s.length for s in packed.segments) == len(packed.token_ids) == len({p for places in packed.places for p in places})


@given(st.lists(tokens, min_size=1, max_size=8), st.integers(1, 6))
def test_a_token_sees_its_own_past_and_nothing_else(sequences: list[tuple[int, ...]], shortest: int) -> None:
    packed = pack(sequences, shortest)
    for places in packed.places:
        last = next(s for s in packed.segments if s.start <= places[-1] < s.start + s.length)
        seen = [p for a in last.ancestors for p in range(packed.segments[a].start, packed.segments[a].start + packed.segments[a].length)]
        seen += range(last.start, places[-1] + 1)
        assert seen == list(places)


@given(st.lists(tokens, min_size=1, max_size=8), st.integers(1, 6))
def test_a_segment_is_seen_by_its_subtree_and_by_nobody_else(sequences: list[tuple[int, ...]], shortest: int) -> None:
    segments = pack(sequences, shortest).segments
    for number, segment in enumerate(segments):
        below = [other for other in segments if number in other.ancestors]
        assert [other for other in segments if segment.start < other.start < segment.until] == below
        assert segment.until == max(other.start + other.length for other in (segment, *below))
        assert segment.begin == sum(segments[a].length for a in segment.ancestors)


def test_nothing_packed_is_an_empty_row() -> None:
    assert (list(pack([]).token_ids), pack([]).places) == ([], ())
    assert [list(places) for places in pack([(), (5,)]).places] == [[], [0]]


def test_a_long_shared_prompt_is_computed_once_and_forks_are_nested() -> None:
    prompt = tuple(range(20))
    first = (*prompt, *range(100, 120))
    packed = pack([(*first, 1), (*first, 2), (*prompt, 3)])
    assert [(s.start, s.length, s.ancestors) for s in packed.segments] == [
        (0, 20, ()),
        (20, 1, (0,)),
        (21, 20, (0,)),
        (41, 1, (0, 2)),
        (42, 1, (0, 2)),
    ]


def test_a_short_shared_run_is_not_worth_a_segment() -> None:
    packed = pack([(1, 2, 3, 4), (1, 2, 5), (1, 2)], shortest_shared_run=3)
    assert len(packed.token_ids) == 9
    assert all(s.ancestors == () for s in packed.segments)
