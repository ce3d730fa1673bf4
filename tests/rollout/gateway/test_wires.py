"""Whatever a harness sends is understood or refused; nothing else happens."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rollout.gateway.world import CHATML_WITH_TOOLS, END, model_folder, world
from tidemill.api.rljob import Tools
from tidemill_rollout.gateway.conversation import Answer, Ask, Fault, Message, ToolCall, TooLong, joined, request_digest
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.turns import History
from tidemill_rollout.gateway.wires import chat, messages, responses

Parse = Callable[[bytes, Mapping[str, str]], Ask]

FIELDS = [
    *("messages", "role", "content", "type", "text", "tool_calls", "id", "function", "name", "arguments", "tools", "parameters", "stop", "stream"),
    *("n", "max_tokens", "system", "tool_use", "tool_result", "tool_use_id", "input", "input_schema", "thinking", "signature", "tool_call_id"),
    *("user", "assistant", "tool", "image_url", "output", "call_id", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
    *("summary", "encrypted_content", "custom", "namespace", "format", "definition", "__unparsedToolInput", "t" + "0" * 20),
]
keys = st.sampled_from(FIELDS)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | keys | st.text(max_size=8) | st.sampled_from([10**30, 2**63, -(2**63) - 1, 1e308])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12)
texts = st.text(max_size=5)
written = texts | st.sampled_from(
    ['{"a": 1e999}', '{"a": "\\ud800"}', '{"a": ' + "9" * 5000 + "}", '{"a": NaN}', "[]", '{"a":' * 99 + "1" + "}" * 99]
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects with any of these fields, and now and then with anything in one of them."""
    return st.fixed_dictionaries({}, optional={name: field | values for name, field in fields.items()})


function = st.fixed_dictionaries({"name": texts | values}, optional={"arguments": written | values, "parameters": values, "description": texts})
blocks = st.lists(
    some(
        type=st.sampled_from(["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image"]),
        text=texts,
        id=texts,
        name=texts,
        input=values,
        tool_use_id=texts,
        content=texts,
        thinking=texts,
        signature=keys,
    ),
    max_size=3,
)
items = some(
    type=st.sampled_from(["message", "reasoning", "function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output"]),
    role=st.sampled_from(["user", "assistant", "developer", "system"]),
    content=texts,
    id=texts,
    call_id=texts,
    name=texts,
    namespace=texts,
    arguments=written,
    input=texts,
    output=texts,
    encrypted_content=keys,
    summary=values,
)
roles = st.sampled_from(["user", "assistant", "system", "tool"])
said = st.fixed_dictionaries(
    {"role": roles, "content": texts | blocks | values},
    optional={"tool_calls": st.lists(some(id=texts, function=function), max_size=2) | values, "tool_call_id": texts, "reasoning_content": texts},
)


@dataclass(frozen=True)
class Wire:
    module: ModuleType
    elements: str
    element: st.SearchStrategy[Any]
    tools: st.SearchStrategy[Any]

    @property
    def bodies(self) -> st.SearchStrategy[dict[str, Any]]:
        listed = st.lists(self.element | values, max_size=4)
        optional = dict.fromkeys(("temperature", "seed", "stream", "stop", "n", "thinking", "max_tokens", "include"), values)
        optional |= {"tools": st.lists(self.tools, max_size=2) | values, "system": texts | blocks | values, "instructions": texts | values}
        return st.fixed_dictionaries({self.elements: listed}, optional=optional)


WIRES = {
    "chat": Wire(chat, "messages", said, some(type=st.just("function"), function=function)),
    "messages": Wire(messages, "messages", said, some(name=texts, input_schema=values, description=texts)),
    "responses": Wire(
        responses, "input", items, some(type=st.sampled_from(["function", "custom", "namespace"]), name=texts, parameters=values, tools=values)
    ),
}
wires = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)


@pytest.fixture(scope="module", params=list(Tools))
def renderer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(model_folder(tmp_path_factory.mktemp("model"), CHATML_WITH_TOOLS), request.param)


@wires
@settings(max_examples=60)
@given(data=st.data())
def test_a_body_becomes_tokens_or_a_fault(renderer: Renderer, wire: Wire, data: st.DataObject) -> None:
    raw = data.draw(wire.bodies.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=50))
    refused: Fault | None = None
    try:
        ask = wire.module.parse(raw, {})
        conversation = joined(ask.messages)
        assert len(request_digest(ask)) == 16
        assert History().place(conversation, ask.tools).new == conversation
        assert renderer.prompt(conversation, ask.tools)
        renderer.bridge(Message("assistant", "a"), END, conversation, ask.tools)
    except Fault as fault:
        refused = fault
    assert refused is None or (refused.status == 400 and json.loads(wire.module.error(refused))["error"]["message"])


@wires
@settings(max_examples=50)
@given(data=st.data())
def test_what_is_made_of_an_element_does_not_depend_on_the_others(wire: Wire, data: st.DataObject) -> None:
    """So a history need not be parsed again when only its last elements are new."""
    elements = data.draw(st.lists(wire.element, min_size=1, max_size=5))
    around = {"system": "be brief", "instructions": "be brief"}

    def parsed(some: list[Any]) -> Ask | None:
        try:
            return wire.module.parse(json.dumps({**around, wire.elements: some}).encode(), {})
        except Fault:
            return None

    whole, each = parsed(elements), [parsed([element]) for element in elements]
    if any(one is None for one in each):
        assert whole is None
        return
    assert whole is not None
    apart = [message for one in each if one for message in one.messages[one.lead :]]
    assert list(whole.messages) == [*whole.messages[: whole.lead], *apart]
    cut = data.draw(st.integers(0, len(whole.messages)))
    assert joined((*joined(whole.messages[:cut]), *whole.messages[cut:])) == joined(whole.messages)
    assert joined(joined(whole.messages)) == joined(whole.messages)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@wires
@pytest.mark.parametrize("depth", [100, 900, 1200, 9000, 100_000])
def test_deep_nesting_anywhere_becomes_tokens_or_a_fault(renderer: Renderer, wire: Wire, depth: int) -> None:
    deep = msgspec.Raw(nested(depth).encode())
    call = {"id": "x", "type": "function", "function": {"name": "t", "arguments": nested(depth)}}
    tool = {"type": "function", "name": "t", "input_schema": deep, "parameters": deep, "function": {"name": "t", "parameters": deep}}
    used = {"role": "assistant", "tool_calls": [call], "content": [{"type": "tool_use", "id": "x", "name": "t", "input": deep}]}
    items = [
        {"type": "function_call", "call_id": "x", "name": "t", "arguments": nested(depth)},
        {"type": "function_call_output", "call_id": "x", "output": deep},
    ]
    plain = {"messages": [{"role": "user", "content": "a"}], "input": "a"}
    lists = msgspec.Raw(b"[" * depth + b"]" * depth)
    for body in (
        {**plain, "tools": [tool]},
        {"messages": [used], "input": items},
        {**plain, "temperature": deep},
        {"messages": lists, "input": lists},
    ):
        status = 0
        try:
            ask = wire.module.parse(msgspec.json.encode(body), {})
            request_digest(ask)
            assert renderer.prompt(joined(ask.messages), ask.tools)
        except Fault as fault:
            status = fault.status
        assert status in (0, 400)


@wires
@pytest.mark.parametrize(
    "content",
    [b'"\\ud800"', b'"\xff"', b"NaN", b"1e999", b'"a" "b"', b"", b"[" * 100_000 + b"]" * 100_000],
    ids=["surrogate", "latin-1", "nan", "huge", "two", "none", "deep"],
)
def test_hostile_json_is_refused(wire: Wire, content: bytes) -> None:
    for raw in (
        b'{"%s": [{"role": "user", "content": %s}]}' % (wire.elements.encode(), content),
        b'{"%s": [{"role": "user", "content": "a"}], "temperature": %s}' % (wire.elements.encode(), content),
    ):
        with pytest.raises(Fault) as fault:
            wire.module.parse(raw, {})
        assert fault.value.status == 400


@wires
def test_of_a_field_that_is_there_twice_the_last_counts(wire: Wire) -> None:
    raw = b'{"%s": [{"role": "user", "content": "a"}], "%s": [{"role": "user", "content": "b"}]}' % ((wire.elements.encode(),) * 2)
    assert [message.text for message in wire.module.parse(raw, {}).messages] == ["b"]


@wires
def test_sampling_parameters_are_recorded_when_they_are_plain(wire: Wire) -> None:
    plain = {"temperature": 0.25, "top_p": 1, "tool_choice": "auto", "parallel_tool_calls": True}
    body = {wire.elements: [{"role": "user", "content": "a"}], **plain, "seed": 10**30, "top_k": {"a": 1}, "min_p": "x" * 999}
    assert wire.module.parse(json.dumps(body).encode(), {}).asked == plain


@wires
@settings(max_examples=2)  # each starts a gateway
@given(data=st.data())
def test_no_body_makes_the_gateway_fail(tmp_path_factory: pytest.TempPathFactory, wire: Wire, data: st.DataObject) -> None:
    """The same through the whole of it: a 400 in the wire's shape, or an answer."""
    path = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}[wire.module.__name__.rpartition(".")[2]]
    raws = [json.dumps(body).encode() for body in data.draw(st.lists(wire.bodies, min_size=20, max_size=30))]

    async def post_all() -> None:
        async with world(tmp_path_factory.mktemp("world"), template=CHATML_WITH_TOOLS) as w:
            for raw in raws:
                async with w.session.post(f"{w.url}/x/e1/v1/{path}", data=raw, headers={"x-api-key": "key-of-e1"}) as response:
                    answer = await response.read()
                    assert response.status in (200, 400), (raw, answer)
                    assert response.content_type == "text/event-stream" or json.loads(answer)
            await w.close()

    asyncio.run(post_all())


answers = st.builds(
    lambda text, reasoning, calls: (text, reasoning, calls),
    st.text(max_size=20),
    st.text(max_size=5),
    st.lists(st.sampled_from(['{"a": 1.0}', "{}", '{"b": "é\\n"}']), max_size=2),
)


@given(answers)
def test_what_a_wire_sends_it_recognises_when_it_comes_back(said: tuple[str, str, list[str]]) -> None:
    text, reasoning, arguments = said
    turn = "t" + "0" * 20
    calls = tuple(ToolCall(f"{turn}x{n}", "tool", one) for n, one in enumerate(arguments))
    answer = Answer(turn, text, reasoning, calls, "calls" if calls else "stop", 1, 1)
    ask = Ask("any", (), thinking=True)
    sent = json.loads(chat.Reply(ask).whole(answer))["choices"][0]["message"]
    back = chat.parse(json.dumps({"messages": [sent]}).encode(), {}).messages[0]
    assert (back.text, back.calls, back.reasoning) == (text, calls, reasoning)
    sent = {"role": "assistant", "content": json.loads(messages.Reply(ask).whole(answer))["content"]}
    back = messages.parse(json.dumps({"messages": [sent]}).encode(), {}).messages[0]
    assert (back.text, back.turn, [call.id for call in back.calls]) == (text, turn, [call.id for call in calls])
    sent = json.loads(responses.Reply(ask).whole(answer))["output"]
    [back] = joined(responses.parse(json.dumps({"input": sent}).encode(), {}).messages)
    assert (back.text, back.turn, back.calls, back.reasoning) == (text, turn, calls, reasoning)


@wires
@given(said=answers, thinking=st.booleans(), pulses=st.integers(0, 2))
def test_a_stream_is_made_of_events_that_are_json(wire: Wire, said: tuple[str, str, list[str]], thinking: bool, pulses: int) -> None:
    text, reasoning, arguments = said
    calls = tuple(ToolCall(f"t{'0' * 20}x{n}", "tool", one) for n, one in enumerate(arguments))
    answer = Answer("t" + "0" * 20, text, reasoning, calls, "calls" if calls else "length", 1, 1)
    for ending in ("closing", "failure"):
        reply = wire.module.Reply(Ask("any", (), thinking=thinking, stream=True))
        sent = reply.opening(3) + b"".join(reply.pulse() for _ in range(pulses))
        sent += reply.closing(answer) if ending == "closing" else reply.failure(TooLong(7, 5))
        assert sent.endswith(b"\n\n")
        for event in sent.decode().removesuffix("\n\n").split("\n\n"):
            lines = event.split("\n")
            assert lines[-1].startswith("data: ")
            assert lines[-1] == "data: [DONE]" or json.loads(lines[-1].removeprefix("data: "))


def test_parts_of_one_answer_become_one_message() -> None:
    one, two = "t" + "1" * 20, "t" + "2" * 20

    def part(text: str = "", reasoning: str = "", call: str = "", signature: str = "") -> Message:
        calls = (ToolCall(call, "t", "{}"),) if call else ()
        return Message("assistant", text, reasoning, calls, signature=signature, part=True)

    user, result = Message("user", "u"), Message("tool", "r", call_id="c")
    answer = joined([user, part(reasoning="hm", signature=one), part("a"), part(call=f"{one}x0"), part(call=f"{one}x1"), result])
    assert [message.role for message in answer] == ["user", "assistant", "tool"]
    assert (answer[1].reasoning, answer[1].text, len(answer[1].calls), answer[1].turn) == ("hm", "a", 2, one)
    # calls that stand each before its result are still one answer, when they say whose they are
    assert [len(m.calls) for m in joined([part("a"), part(call=f"{one}x0"), result, part(call=f"{one}x1"), result])] == [2, 0, 0]
    assert [len(m.calls) for m in joined([part(call="c"), result, part(call="d"), result])] == [1, 0, 1, 0]
    # two answers with nothing in between
    assert len(joined([part("a", signature=one), part(reasoning="hm", signature=two), part("b")])) == 2
    assert len(joined([part("a"), part(reasoning="hm"), part("b")])) == 2
    assert len(joined([Message("assistant", "a"), Message("assistant", "b")])) == 2
