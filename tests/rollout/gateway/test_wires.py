"""Whatever a harness sends is understood or refused; nothing else happens."""

import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rollout.gateway.world import CHATML_WITH_TOOLS, model_folder
from tidemill.api.rljob import Tools
from tidemill_rollout.gateway.conversation import Answer, Ask, Fault, ToolCall, request_digest
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.turns import History
from tidemill_rollout.gateway.wires import chat, messages

Parse = Callable[[bytes, Mapping[str, str]], Ask]

FIELDS = [
    *("messages", "role", "content", "type", "text", "tool_calls", "id", "function", "name", "arguments", "tools", "parameters", "stop", "stream"),
    *("n", "max_tokens", "system", "tool_use", "tool_result", "tool_use_id", "input", "input_schema", "thinking", "signature", "tool_call_id"),
    *("user", "assistant", "tool", "image_url"),
]
keys = st.sampled_from(FIELDS)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | keys | st.text(max_size=8)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12)
said = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": st.text(max_size=5) | values}, optional={"tool_calls": values}
)
bodies = st.fixed_dictionaries(
    {"messages": st.lists(said | values, max_size=4)}, optional={"tools": values, "system": values, "stop": values, "n": values}
)


@pytest.fixture(scope="module", params=list(Tools))
def renderer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(model_folder(tmp_path_factory.mktemp("model"), CHATML_WITH_TOOLS), request.param)


@pytest.mark.parametrize("parse", [chat.parse, messages.parse], ids=["chat", "messages"])
@settings(max_examples=200)
@given(bodies.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=50))
def test_a_body_becomes_tokens_or_a_fault(renderer: Renderer, parse: Parse, raw: bytes) -> None:
    refused: Fault | None = None
    try:
        ask = parse(raw, {})
        assert len(request_digest(ask)) == 16
        assert History().place(ask.messages, ask.tools).new == ask.messages
        assert renderer.prompt(ask.messages, ask.tools)
    except Fault as fault:
        refused = fault
    assert refused is None or (refused.status == 400 and json.loads(chat.error(refused))["error"]["message"])


@pytest.mark.parametrize("parse", [chat.parse, messages.parse], ids=["chat", "messages"])
@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "tools": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
    ids=["surrogate", "latin-1", "deep", "deep-tools"],
)
def test_hostile_json_is_refused(parse: Parse, raw: bytes) -> None:
    with pytest.raises(Fault) as fault:
        parse(raw, {})
    assert fault.value.status == 400


@given(st.text(max_size=20), st.text(max_size=5), st.lists(st.sampled_from(['{"a": 1.0}', "{}", '{"b": "é\\n"}']), max_size=2))
def test_what_a_wire_sends_it_recognises_when_it_comes_back(text: str, reasoning: str, arguments: list[str]) -> None:
    turn = "t" + "0" * 20
    calls = tuple(ToolCall(f"{turn}x{n}", "tool", one) for n, one in enumerate(arguments))
    answer = Answer(turn, text, reasoning, calls, "calls" if calls else "stop", 1, 1)
    ask = Ask("any", (), thinking=True)
    sent = json.loads(chat.Reply(ask).whole(answer))["choices"][0]["message"]
    back = chat.parse(json.dumps({"messages": [sent]}).encode(), {}).messages[0]
    assert (back.text, back.calls) == (text, calls)
    sent = {"role": "assistant", "content": json.loads(messages.Reply(ask).whole(answer))["content"]}
    back = messages.parse(json.dumps({"messages": [sent]}).encode(), {}).messages[0]
    assert (back.text, back.turn, [call.id for call in back.calls]) == (text, turn, [call.id for call in calls])
