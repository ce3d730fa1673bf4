from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.trajectory.records import Piece, Turn
from tidemill.trajectory.sampling import draw_paths
from tidemill.trajectory.tree import BrokenTree, grow


def turn(name: str, parent: str = "", sampled: int = 4, given: int = 3, agent: str = "") -> Turn:
    piece = Piece("cell-0", tuple(range(sampled)), (-0.5,) * sampled, (1,) * sampled)
    return Turn(name, "g1-0", 1, parent, agent, tuple(range(100, 100 + given)), (piece,), "stop", 0.0, 1.0, "chat")


def test_a_leaf_path_goes_from_the_root_to_the_leaf() -> None:
    tree = grow([turn("a"), turn("b", "a"), turn("c", "b"), turn("d", "a")])
    assert [leaf.id for leaf in tree.leaves] == ["c", "d"]
    assert [t.id for t in tree.path(tree.leaves[0])] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("turns", "complaint"),
    [
        ([turn("a"), turn("a")], "recorded twice"),
        ([turn("b", "a")], "continues turn a, which is not recorded"),
        ([turn("a", "b"), turn("b", "a")], "continues itself"),
    ],
)
def test_turns_that_do_not_fit_together_are_named(turns: list[Turn], complaint: str) -> None:
    with pytest.raises(BrokenTree, match=complaint):
        grow(turns)


def test_a_shared_prefix_is_trained_once() -> None:
    tree = grow([turn("root"), turn("left", "root"), turn("right", "root")])
    paths = draw_paths(tree, 5, Random(1))
    assert len(paths) == 2
    assert sorted(t for path in paths for t in path.trained) == ["left", "right", "root"]


def test_the_main_agent_comes_before_its_sub_agents() -> None:
    tree = grow([turn("main", sampled=1), turn("sub", sampled=1000, agent="explore")])
    assert [path.turns[-1].id for path in draw_paths(tree, 1, Random(1))] == ["main"]


def test_a_leaf_is_drawn_in_proportion_to_what_it_would_train() -> None:
    tree = grow([turn("long", sampled=30), turn("short", sampled=10)])
    first = [draw_paths(tree, 1, Random(seed))[0].turns[0].id for seed in range(2000)]
    assert first.count("long") / len(first) == pytest.approx(0.75, abs=0.03)


def test_nothing_sampled_gives_no_path() -> None:
    assert draw_paths(grow([turn("a", sampled=0)]), 5, Random(1)) == ()
    assert draw_paths(grow([]), 5, Random(1)) == ()


@st.composite
def forests(draw: st.DrawFn) -> list[Turn]:
    size = draw(st.integers(0, 12))
    turns: list[Turn] = []
    for n in range(size):
        parent = draw(st.sampled_from(["", *(t.id for t in turns)]))
        turns.append(turn(f"t{n}", parent, draw(st.integers(0, 5)), draw(st.integers(0, 3)), draw(st.sampled_from(["", "", "helper"]))))
    return turns


@given(forests(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_token_is_trained_twice_and_without_a_cap_every_token_once(turns: list[Turn], most: int, random: Random) -> None:
    tree = grow(turns)
    trained = [name for path in draw_paths(tree, most, random) for name in path.trained]
    assert len(trained) == len(set(trained))
    everything = [name for path in draw_paths(tree, len(turns) + 1, random) for name in path.trained]
    assert sorted(everything) == sorted(t.id for t in turns if t.sampled_ids)


@given(forests(), st.integers(1, 5), st.integers(0, 1000))
def test_the_same_seed_draws_the_same_paths(turns: list[Turn], most: int, seed: int) -> None:
    assert draw_paths(grow(turns), most, Random(seed)) == draw_paths(grow(turns), most, Random(seed))
