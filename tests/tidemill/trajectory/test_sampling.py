from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidemill.trajectory.forests import forests, turn
from tidemill.trajectory.classes import leaf_class
from tidemill.trajectory.records import Turn
from tidemill.trajectory.sampling import draw_paths
from tidemill.trajectory.tree import grow


def test_a_shared_prefix_is_trained_once() -> None:
    tree = grow([turn("root"), turn("left", "root"), turn("right", "root")])
    paths = draw_paths(tree, 5, Random(1))
    assert len(paths) == 2
    assert sorted(t for path in paths for t in path.trained) == ["left", "right", "root"]


def test_the_main_agent_comes_before_its_sub_agents() -> None:
    tree = grow([turn("main", sampled=1), turn("sub", sampled=1000, agent="explore")])
    assert [path.turns[-1].id for path in draw_paths(tree, 1, Random(1))] == ["main"]


def test_classes_come_in_their_order_however_much_there_is_to_train() -> None:
    leaves = [
        turn("sub-summary", sampled=1000, agent="explore", summary=True),
        turn("sub", sampled=100, agent="explore"),
        turn("summary", sampled=10, summary=True),
        turn("main", sampled=1),
    ]
    drawn = draw_paths(grow(leaves), 4, Random(1))
    assert [path.turns[-1].id for path in drawn] == ["main", "summary", "sub", "sub-summary"]


def test_a_leaf_is_drawn_in_proportion_to_what_it_would_train() -> None:
    tree = grow([turn("long", sampled=30), turn("short", sampled=10)])
    first = [draw_paths(tree, 1, Random(seed))[0].turns[0].id for seed in range(2000)]
    assert first.count("long") / len(first) == pytest.approx(0.75, abs=0.03)


def test_nothing_sampled_gives_no_path() -> None:
    assert draw_paths(grow([turn("a", sampled=0)]), 5, Random(1)) == ()
    assert draw_paths(grow([]), 5, Random(1)) == ()


@given(forests(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_token_is_trained_twice_and_without_a_cap_every_token_once(turns: list[Turn], most: int, random: Random) -> None:
    tree = grow(turns)
    trained = [name for path in draw_paths(tree, most, random) for name in path.trained]
    assert len(trained) == len(set(trained))
    everything = [name for path in draw_paths(tree, len(turns) + 1, random) for name in path.trained]
    assert sorted(everything) == sorted(t.id for t in turns if t.sampled)


@given(forests(), st.randoms(use_true_random=False))
def test_a_class_is_only_drawn_when_the_classes_before_it_have_nothing_left(turns: list[Turn], random: Random) -> None:
    tree = grow(turns)
    taken: set[str] = set()
    for path in draw_paths(tree, len(turns) + 1, random):
        left = [leaf for leaf in tree.leaves if any(n.turn.sampled and n.turn.id not in taken for n in leaf.path)]
        assert leaf_class(path.turns[-1]) == min(leaf_class(leaf.turn) for leaf in left)
        assert path.trained == {t.id for t in path.turns if t.sampled} - taken
        taken |= path.trained


@given(forests(), st.integers(1, 5), st.integers(0, 1000))
def test_the_same_seed_draws_the_same_paths(turns: list[Turn], most: int, seed: int) -> None:
    assert draw_paths(grow(turns), most, Random(seed)) == draw_paths(grow(turns), most, Random(seed))
