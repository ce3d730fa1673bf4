import pytest
from hypothesis import given

from tests.tidemill.trajectory.forests import forests, turn
from tidemill.trajectory.records import Turn
from tidemill.trajectory.tree import BrokenTree, grow


def test_a_leaf_path_goes_from_the_root_to_the_leaf() -> None:
    tree = grow([turn("a"), turn("b", "a"), turn("c", "b"), turn("d", "a")])
    assert [leaf.turn.id for leaf in tree.leaves] == ["c", "d"]
    assert [node.turn.id for node in tree.leaves[0].path] == ["a", "b", "c"]
    assert [(node.before, node.end) for node in tree.leaves[0].path] == [(0, 7), (7, 14), (14, 21)]
    assert tree.tokens == 28


@pytest.mark.parametrize(
    ("turns", "complaint"),
    [
        ([turn("a"), turn("a")], "turn a is recorded twice"),
        ([turn("b", "a")], "turn b continues turn a, which is not recorded"),
        ([turn("r"), turn("a", "b"), turn("b", "a")], "turn a continues itself"),
        ([turn("a", "a")], "turn a continues itself"),
    ],
)
def test_turns_that_do_not_fit_together_are_named(turns: list[Turn], complaint: str) -> None:
    with pytest.raises(BrokenTree, match=f"execution g1-0: {complaint}"):
        grow(turns)


@given(forests())
def test_every_turn_is_one_node_below_its_parent_and_leaves_are_those_that_nobody_continues(turns: list[Turn]) -> None:
    tree = grow(turns)
    assert list(tree.nodes) == [t.id for t in turns]
    assert sorted(node.turn.id for node in tree.downward) == sorted(tree.nodes)
    seen: set[str] = {""}
    for node in tree.downward:
        assert node.turn.parent in seen
        seen.add(node.turn.id)
        path = node.path
        assert (path[-1], path[0].parent) == (node, None)
        assert node.end == sum(len(n.turn.context_ids) + len(n.turn.sampled_ids) for n in path)
    assert {leaf.turn.id for leaf in tree.leaves} == {t.id for t in turns} - {t.parent for t in turns}
