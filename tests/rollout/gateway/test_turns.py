"""Which turn a request continues."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.gateway.world import CHATML, model_folder, tokens_of
from tidemill.api.rljob import Tools
from tidemill.trajectory.records import Piece, Turn
from tidemill_rollout.gateway.conversation import Answer, Ask, Message, ToolCall, canonical, request_digest
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.turns import History, Kept


@dataclass
class Execution:
    """Asks and answers without any process around it."""

    renderer: Renderer
    history: History = field(default_factory=History)
    records: dict[str, Turn] = field(default_factory=dict)

    def ask(self, messages: list[Message], sampled: str, calls: tuple[tuple[str, str], ...] = (), ends: bool = True) -> Message:
        place = self.history.place(messages, ())
        turn_id = f"t{len(self.history):020x}"
        if place.after:
            answered = self.history.answer(place.after).message
            context = self.renderer.bridge(answered, self.history.last_token(place.after), place.new, ())
            assert context is not None
        else:
            context = self.renderer.prompt(messages, ())
        ids = tuple(tokens_of(sampled, ends))
        piece = Piece("cell-0", ids, (0.0,) * len(ids), (0,) * len(ids))
        turn = Turn(turn_id, "e", 1, place.after, "", tuple(context), (piece,), "stop", 0.0, 0.0, "chat")
        answer = Answer(turn_id, sampled, "", tuple(ToolCall(f"{turn_id}x{n}", *call) for n, call in enumerate(calls)), "stop", 0, len(ids))
        self.history.add(Kept(turn, answer, place.after, place.given, b""))
        self.records[turn_id] = turn
        return answer.message

    def parent(self, message: Message) -> str:
        return self.records[message.signature].parent


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(model_folder(tmp_path_factory.mktemp("chatml"), CHATML), Tools.TEXT)


def user(text: str) -> Message:
    return Message("user", text)


def echoed(message: Message, **changes: object) -> Message:
    """As a wire without thinking signatures brings it back."""
    return Message("assistant", str(changes.get("text", message.text)), calls=changes.get("calls", message.calls))


def test_a_conversation_continues_and_an_edit_branches_off_where_it_differs(chatml: Renderer) -> None:
    e = Execution(chatml)
    one = e.ask([user("a")], "b")
    two = e.ask([user("a"), echoed(one), user("c")], "d")
    assert e.parent(two) == one.signature
    edited = e.ask([user("a"), echoed(one), user("C")], "e")
    assert e.parent(edited) == one.signature
    other = e.ask([user("A"), echoed(one), user("c")], "f")
    assert e.parent(other) == ""
    rewritten = e.ask([user("a"), Message("assistant", "B"), user("c")], "g")
    assert e.parent(rewritten) == ""
    assert e.history.tokens(two.signature)[: len(e.history.tokens(one.signature))] == e.history.tokens(one.signature)


def test_a_turn_id_is_believed_over_a_changed_text_but_not_elsewhere(chatml: Renderer) -> None:
    e = Execution(chatml)
    one = e.ask([user("a")], "b", calls=(("bash", '{"n": 1000.0}'),))
    changed = echoed(one, text="moved", calls=(ToolCall(one.calls[0].id, "bash", '{"n":"1000"}'),))
    assert e.parent(e.ask([user("a"), changed, Message("tool", "r", call_id=one.calls[0].id)], "c")) == one.signature
    # after compaction the last turns stand verbatim under a new root: they are given there, not sampled
    compacted = e.ask([user("summary"), echoed(one), Message("tool", "r", call_id=one.calls[0].id)], "d")
    assert e.parent(compacted) == ""


def test_of_equal_answers_the_one_that_is_named_is_continued(chatml: Renderer) -> None:
    e = Execution(chatml)
    one, two = e.ask([user("a")], "b"), e.ask([user("a")], "b")
    assert e.parent(e.ask([user("a"), one, user("c")], "d")) == one.signature
    assert e.parent(e.ask([user("a"), echoed(one), user("c")], "d")) == two.signature  # the newest, where nothing tells


def test_results_count_in_the_order_of_the_calls(chatml: Renderer) -> None:
    e = Execution(chatml)
    one = e.ask([user("a")], "b", calls=(("x", "{}"), ("y", "{}")))
    results = [Message("tool", call.name, call_id=call.id) for call in one.calls]
    straight = e.history.place([user("a"), one, *results], ())
    turned = e.history.place([user("a"), one, *reversed(results)], ())
    assert straight == turned


def test_canonical_form_ignores_what_harnesses_change_without_meaning() -> None:
    def call(arguments: str, call_id: str = "") -> Message:
        return Message("assistant", "hi", calls=(ToolCall(call_id, "t", arguments),))

    assert canonical(call('{"a": 1000.0, "b": [1.0]}', "x")) == canonical(call('{"b":[1],"a":1000}'))
    assert canonical(call('{"a": 1}')) != canonical(call('{"a": 2}'))
    assert canonical(Message("assistant", " hi\n", reasoning="hm")) == canonical(Message("assistant", "hi"))
    assert canonical(user(" hi")) != canonical(user("hi"))
    ask = Ask("messages", (user("a"),), stream=True)
    assert request_digest(ask) == request_digest(Ask("messages", (user("a"),)))
    assert request_digest(ask) != request_digest(Ask("messages", (user("a"),), agent="other"))


steps = st.lists(
    st.tuples(st.integers(0, 30), st.text("ab", max_size=3), st.text("xy", max_size=3), st.booleans(), st.booleans()), min_size=1, max_size=25
)


@given(steps)
def test_whatever_is_continued_retried_or_forked_every_turn_has_exactly_the_tokens_of_its_conversation(
    chatml: Renderer, steps: list[tuple[int, str, str, bool, bool]]
) -> None:
    """Each step goes on from some earlier conversation. Its path must be what was sampled, between what the template gives."""
    e = Execution(chatml)
    conversations: list[list[Message]] = [[]]
    for pick, said, sampled, ends, named in steps:
        asked = [*conversations[pick % len(conversations)], user(said)]
        answer = e.ask(asked, sampled, ends=ends)
        conversations.append([*asked, answer if named else echoed(answer)])
        path = list(e.history.tokens(answer.signature))
        whole = chatml.prompt(asked, ()) + tokens_of(sampled, ends)
        assert path == whole
    assert sum(len(turn.sampled_ids) for turn in e.records.values()) == sum(len(s[2]) + s[3] for s in steps)


def test_a_long_history_is_found_to_its_end(chatml: Renderer) -> None:
    e = Execution(chatml)
    messages: list[Message] = []
    for n in range(300):
        messages.append(user(f"{n}"))
        messages.append(e.ask(messages, "answer"))
    assert e.history.place([*messages, user("more")], ()).after == messages[-1].signature


def test_what_no_message_gives_away_is_found_by_its_tokens(chatml: Renderer) -> None:
    """Two messages of a user merged into one, a thought quoted in the text: other messages, the same tokens."""
    e = Execution(chatml)
    one = e.ask([user("a")], "<think>hm</think>b")
    two = e.ask([user("a"), one, user("c")], "d")
    other = e.ask([user("a"), one, user("c")], "e")
    prompt = chatml.prompt([user("a"), Message("assistant", "<think>hm</think>b"), user("c"), Message("assistant", "d"), user("f")], ())
    assert e.history.deepest(prompt) == (two.signature, len(e.history.tokens(two.signature)), 2)
    assert e.history.deepest(prompt, one.signature)[::2] == (two.signature, 1)
    assert e.history.deepest(prompt, other.signature)[::2] == (other.signature, 0)
    assert e.history.deepest(chatml.prompt([user("b")], ()))[::2] == ("", 0)
