import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.tidemill.report.trajectories import WHOLE
from tests.tidemill.trajectory.forests import forests
from tidemill.report.strands import Rule, picture
from tidemill.trajectory.records import FORMAT_VERSION, Judgement, Trajectory, Turn


def test_each_branch_is_a_strand_that_tells_why_it_is_there_and_what_it_holds() -> None:
    seen = picture(WHOLE, Rule(5, 1))
    assert [(s.name, s.parent, s.start, [n.turn.id for n in s.nodes]) for s in seen.strands] == [
        ("main", None, 0, ["t1", "t2"]),
        ("main: retry", 0, 5, ["r2"]),
        ("main: edited", 0, 5, ["e2"]),
        ("main: summary", 0, 5, ["c1"]),
        ("sub-agent look<up>", None, 0, ["s1"]),
        ("sub-agent deeper of look<up>", None, 0, ["s2"]),
        ("main: compacted", None, 0, ["n1", "n2"]),
    ]
    main = seen.strands[0]
    assert (main.given, main.sampled, main.versions, main.cells, main.moved) == (4, 4, (3, 4), {"cell-0": 3, "cell-1": 1}, 1)
    assert main.given_by == {"system": 1, "user": 1, "tool": 1}


def test_what_is_drawn_is_what_the_conductor_draws_and_nothing_where_nothing_is_trained() -> None:
    drawn = picture(WHOLE, Rule(5, 1)).drawn
    assert drawn == {"t1", "t2", "r2", "e2", "n1", "n2", "c1"}, "four paths of main, its summary, and no sub-agent"
    assert len(picture(WHOLE, Rule(1, 1)).drawn) < len(drawn)
    assert picture(WHOLE, None).drawn is None
    for nothing in (msgspec.structs.replace(WHOLE, score=None), msgspec.structs.replace(WHOLE, judged=Judgement(False, "no work"))):
        assert picture(nothing, Rule(5, 1)).drawn == frozenset()


@given(forests(), st.integers(1, 5))
def test_every_turn_is_in_one_strand_and_strands_stand_behind_their_parents(turns: list[Turn], most: int) -> None:
    seen = picture(Trajectory(FORMAT_VERSION, "g1-0", 1, "any", 1, 0, 1.0, tuple(turns)), Rule(most, 1))
    assert sorted(node.turn.id for strand in seen.strands for node in strand.nodes) == sorted(turn.id for turn in turns)
    for number, strand in enumerate(seen.strands):
        assert strand.number == number
        assert strand.parent is None or strand.parent < number
        first = strand.nodes[0].turn.parent
        assert (first == "") == (strand.parent is None)
        assert strand.parent is None or first in {node.turn.id for node in seen.strands[strand.parent].nodes}
    assert seen.drawn_tokens(seen.tree.downward) <= sum(turn.sampled for turn in turns)
    assert seen.paths_drawn <= most
