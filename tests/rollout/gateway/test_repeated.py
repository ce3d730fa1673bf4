"""A request of which most was seen before is read as if it had not been."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.trajectory.records import Piece, Turn
from tidemill_rollout.gateway import repeated
from tidemill_rollout.gateway.conversation import Answer, Ask, Fault, ToolCall, digest_request
from tidemill_rollout.gateway.elements import agreed, split
from tidemill_rollout.gateway.repeated import Parse, Reading, Requests, read_whole
from tidemill_rollout.gateway.turns import History, Kept
from tidemill_rollout.gateway.wires import chat, messages, responses

WIRES: dict[str, tuple[Parse, str]] = {
    "chat": (chat.parse, "messages"),
    "messages": (messages.parse, "messages"),
    "responses": (responses.parse, "input"),
}


@pytest.fixture(autouse=True)
def _short_requests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "SHORTEST_BYTES", 0)


@dataclass
class Execution:
    wire: str
    history: History = field(default_factory=History)
    requests: Requests = field(default_factory=Requests)

    def read(self, body: object, headers: Mapping[str, str] = {}) -> Reading:
        """As it is read; checked against the long way."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        parse, elements = WIRES[self.wire]
        reading = self.requests.read("e", self.history, parse, elements, raw, headers)
        whole = read_whole(self.history, parse, raw, headers)
        assert reading.ask == whole.ask
        assert digest_request(reading.running, reading.ask, reading.tools) == digest_request(whole.running, whole.ask, whole.tools)
        assert self.history.end(reading.walk, reading.ask.messages) == self.history.place(whole.ask.messages, whole.ask.tools)
        return reading

    def answer(self, reading: Reading, text: str, calls: int = 0) -> Answer:
        """What the policy says to it, put into the history."""
        place = self.history.end(reading.walk, reading.ask.messages)
        name = f"t{len(self.history):020x}"
        answer = Answer(name, text, "", tuple(ToolCall(f"{name}x{n}", "bash", '{"n": 1}') for n in range(calls)), "stop", 0, 1)
        turn = Turn(name, "e", 1, place.after, "", (1, 2), (Piece("cell-0", (3,), (0.0,), (0,)),), "stop", 0.0, 0.0, self.wire)
        self.history.add(Kept(turn, answer, place.after, place.given, b""))
        return answer


def said(wire: str, text: str, marked: bool = False) -> list[Any]:
    if wire == "responses":
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]
    if wire == "messages" and marked:
        return [{"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}]
    return [{"role": "user", "content": text}]


def echoed(wire: str, answer: Answer) -> list[Any]:
    """The answer as a harness sends it back."""
    if wire == "responses":
        text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer.text}]}
        calls = [{"type": "function_call", "call_id": "call_" + c.id, "name": c.name, "arguments": c.arguments} for c in answer.calls]
        thought = {"type": "reasoning", "summary": [], "encrypted_content": answer.turn}
        return [thought, *([text] if answer.text else []), *calls]
    if wire == "messages":
        blocks = [{"type": "text", "text": answer.text}] if answer.text else []
        return [
            {
                "role": "assistant",
                "content": blocks + [{"type": "tool_use", "id": "toolu_" + c.id, "name": c.name, "input": {"n": 1}} for c in answer.calls],
            }
        ]
    calls = [{"id": "call_" + c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in answer.calls]
    return [{"role": "assistant", "content": answer.text, **({"tool_calls": calls} if calls else {})}]


def results(wire: str, answer: Answer, backwards: bool) -> list[Any]:
    calls = list(reversed(answer.calls)) if backwards else list(answer.calls)
    if wire == "responses":
        return [{"type": "function_call_output", "call_id": "call_" + c.id, "output": c.id} for c in calls]
    if wire == "messages":
        return (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_" + c.id, "content": c.id} for c in calls]}] if calls else []
        )
    return [{"role": "tool", "tool_call_id": "call_" + c.id, "content": c.id} for c in calls]


def body(wire: str, elements: list[Any], system: str = "", tools: bool = False, last: bool = False) -> dict[str, Any]:
    """`last`: what is not the conversation stands behind it."""
    around: dict[str, Any] = {"model": "policy"}
    if system and wire == "messages":
        around["system"] = system
    if system and wire == "responses":
        around["instructions"] = system
    if tools:
        function = {"name": "bash", "parameters": {"type": "object"}}
        around["tools"] = {
            "chat": [{"type": "function", "function": function}],
            "messages": [{"name": "bash", "input_schema": {"type": "object"}}],
            "responses": [{"type": "function", **function}],
        }[wire]
    conversation = {WIRES[wire][1]: elements}
    return {**conversation, **around} if last else {**around, **conversation}


@pytest.mark.parametrize("wire", WIRES)
def test_a_history_that_grows_is_read_from_where_it_was(wire: str) -> None:
    e = Execution(wire)
    elements = said(wire, "go")
    for n in range(20):
        reading = e.read(body(wire, elements, "be good", tools=True))
        assert len(e.history.end(reading.walk, reading.ask.messages).new) <= 4
        answer = e.answer(reading, f"{n}" if n % 3 else "", calls=2 if n % 3 else 1)
        elements = [*elements, *echoed(wire, answer), *results(wire, answer, backwards=bool(n % 2))]
    assert (e.requests.repeated, e.requests.whole) == (19, 0)


@pytest.mark.parametrize("wire", WIRES)
def test_several_histories_are_known_at_once_and_the_least_used_goes(wire: str) -> None:
    e = Execution(wire)
    agents = [said(wire, f"agent {n}") for n in range(repeated.MOST_CONVERSATIONS)]
    for _ in range(3):
        for n, elements in enumerate(agents):
            answer = e.answer(e.read(body(wire, elements, last=True)), f"{n}")
            agents[n] = [*elements, *echoed(wire, answer), *said(wire, "more")]
    assert e.requests.repeated == 2 * len(agents)
    assert sum(len(numbers) for numbers in e.requests._of.values()) == repeated.MOST_CONVERSATIONS
    e.requests.forget("e")
    assert (e.requests._bytes, e.requests._kept) == (0, {})


def test_what_is_kept_is_bounded_by_its_bytes() -> None:
    e = Execution("chat", requests=Requests(most_bytes=100_000))
    for n in range(30):
        e.read(body("chat", said("chat", f"{n}" * 5000)))
        assert e.requests._bytes <= 100_000
    assert len(e.requests._kept) > 2


def test_where_the_process_has_little_memory_less_is_kept(tmp_path: Path) -> None:
    limit, none = tmp_path / "memory.max", tmp_path / "none"
    for text, kept in (("max", repeated.MOST_BYTES), (f"{400 * 2**20}", 100 * 2**20), (f"{2**63}", repeated.MOST_BYTES)):
        limit.write_text(text + "\n")
        assert repeated.room((none, limit)) == kept


def test_a_cache_marker_that_moves_on_costs_only_the_elements_it_touches() -> None:
    e = Execution("messages")
    elements: list[Any] = []
    parsed: list[int] = []

    def counting(raw: bytes, headers: Mapping[str, str]) -> Ask:
        parsed.append(len(raw))
        return messages.parse(raw, headers)

    for n in range(10):
        elements += said("messages", f"{n}" + "x" * 10_000)
        shown = [*elements[:-1], *said("messages", f"{n}" + "x" * 10_000, marked=True)]
        raw = json.dumps(body("messages", shown)).encode()
        parsed.clear()
        reading = e.requests.read("e", e.history, counting, "messages", raw, {})
        assert n < 2 or sum(parsed) < 25_000
        assert reading.ask == messages.parse(raw, {})
        elements += echoed("messages", e.answer(reading, f"{n}"))
    assert e.requests.repeated == 8  # the second has nothing in common with the first


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"model":"x","model":"y"}',
        b'{"mess\\u0061ges":[{"role":"user","content":"a"}]}',
        b' {\n"model" :"x","messages"\t: [ {"role":"user","content":"a"} , {"role":"user","content":"b"} ] } ',
        '{"messages":[{"role":"user","content":"schön \\" ] } , {"}]}'.encode(),
    ],
)
def test_unusual_requests_are_read_as_well(raw: bytes) -> None:
    e = Execution("chat")
    for _ in range(3):
        e.read(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"role":"user","content":"a"},]}',
        b'{"messages":[{"role":"user","content":"a"} {"role":"user","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a"},{"role":"robot","content":"b"}]}',
        b'{"messages":[{"role":"user","content":"a"},{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]',
        b'{"messages":[{"role":"user","content":"a"}]x}',
        b'{"messages":[{"role":"user","content":"a"}],"n":2}',
        b'{"messages":[]}',
    ],
)
def test_a_wrong_request_is_refused_in_the_same_words_however_well_it_begins(raw: bytes) -> None:
    e = Execution("chat")
    e.read(b'{"messages":[{"role":"user","content":"a"}]}')
    with pytest.raises(Fault) as whole:
        read_whole(e.history, chat.parse, raw, {})
    with pytest.raises(Fault) as again:
        e.requests.read("e", e.history, chat.parse, "messages", raw, {})
    assert again.value.message == whole.value.message


step = st.fixed_dictionaries(
    {
        "from": st.integers(0, 30),  # which earlier conversation it goes on from
        "keep": st.integers(0, 40),  # elements of it, from the end
        "edit": st.none() | st.integers(0, 40),  # an element that is written anew
        "say": st.text('ab"\\é', max_size=3),
        "calls": st.integers(0, 3),
        "backwards": st.booleans(),
        "marked": st.booleans(),
        "answered": st.booleans(),
        "same_words": st.booleans(),
        "system": st.sampled_from(["", "be good", "be better"]),
        "tools": st.booleans(),
        "last": st.booleans(),
        "agent": st.sampled_from(["", "a1"]),
        "indent": st.sampled_from([None, 1]),
    }
)


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, min_size=2, max_size=12))
def test_whatever_is_repeated_edited_or_forked_is_read_as_the_long_way_reads_it(wire: str, steps: list[dict[str, Any]]) -> None:
    e = Execution(wire)
    conversations: list[list[Any]] = [[]]
    for number, s in enumerate(steps):
        elements = list(conversations[s["from"] % len(conversations)])
        elements = elements[: len(elements) - s["keep"] % 3]
        if elements and s["edit"] is not None:
            elements[s["edit"] % len(elements)] = said(wire, f"edited {number}")[0]
        elements += said(wire, s["say"], s["marked"])
        raw = json.dumps(body(wire, elements, s["system"], s["tools"], s["last"]), indent=s["indent"]).encode()
        reading = e.read(raw, {"x-claude-code-agent-id": s["agent"]})
        if s["answered"]:
            answer = e.answer(reading, "same" if s["same_words"] else f"{number}", s["calls"])
            elements = [*elements, *echoed(wire, answer), *results(wire, answer, s["backwards"])]
        conversations.append(elements)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_the_common_beginning_of_two_requests_is_found(one: list[int], other: list[int]) -> None:
    first, second = (json.dumps({"model": "m", "messages": [{"n": n} for n in numbers]}).encode() for numbers in (one, other))
    pieces = split(first, "messages")
    assert pieces is not None
    common = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert agreed(first, [end for _, end in pieces.elements], second) == common
