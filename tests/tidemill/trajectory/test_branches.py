from itertools import count

from tests.tidemill.trajectory.forests import turn
from tidemill.trajectory.branches import Origin, origins
from tidemill.trajectory.records import Turn
from tidemill.trajectory.tree import grow


def told(*turns: Turn) -> list[str]:
    return [str(origin) for origin in origins(grow(turns)).values()]


contexts = count(10)


def call(name: str, parent: str = "", agent: str = "", summary: bool = False) -> Turn:
    """With another question each time."""
    return turn(name, parent, given=next(contexts), agent=agent, summary=summary)


def test_the_first_call_starts_and_others_go_on() -> None:
    assert told(call("a"), call("b", "a"), call("c", "b")) == [Origin.START, Origin.GOES_ON, Origin.GOES_ON]


def test_the_same_question_at_the_same_place_is_a_retry_and_another_one_is_an_edit() -> None:
    assert told(call("a"), turn("b", "a"), turn("c", "a"), call("d", "a")) == ["start", "goes on", "retry", "edited"]


def test_a_sub_agent_begins_once_wherever_its_first_call_stands() -> None:
    assert told(call("a"), call("s", agent="x"), call("u", "s", agent="x"), call("f", "a", agent="y")) == [
        "start",
        "sub-agent",
        "goes on",
        "sub-agent",
    ]


def test_a_compaction_is_a_summary_and_a_new_beginning() -> None:
    """Claude Code forks the summary off one answer before the head; the call after it begins a new root."""
    assert told(call("a"), call("b", "a"), call("s", "a", summary=True), call("n"), call("m", "n")) == [
        "start",
        "goes on",
        "summary",
        "compacted",
        "goes on",
    ]


def test_a_summary_does_not_take_the_place_of_what_goes_on() -> None:
    assert told(call("a"), call("s", "a", summary=True), call("b", "a")) == ["start", "summary", "goes on"]
