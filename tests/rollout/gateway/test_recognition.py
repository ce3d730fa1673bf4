"""Whatever a harness changes of an answer that it sends back, the turn is found again."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.trajectory.records import Piece, Turn
from tidemill_rollout.gateway.conversation import Answer, Ask, ToolCall, joined
from tidemill_rollout.gateway.turns import History, Kept
from tidemill_rollout.gateway.wires import chat, messages, responses

ARGUMENTS = (
    ('{"n":  1000.0, "path": "a\\/b"}', '{"path":"a/b","n":1000}'),  # as sampled, as a harness writes it again
    ('{"n": "1", "on": true}', '{"on":true,"n":1}'),
    ('{"text": "\\u00e9\\n", "list": [1.0, 2]}', '{"list":[1,2],"text":"é\\n"}'),
    ("{}", "{}"),
)
TURN = "t" + "7" * 20


@dataclass
class Execution:
    history: History = field(default_factory=History)

    def answered(self, ask: Ask, answer: Answer) -> None:
        place = self.history.place(joined(ask.messages), ask.tools)
        turn = Turn(answer.turn, "e", 1, place.after, "", (1,), (Piece("c", (2,), (0.0,), (0,)),), "stop", 0.0, 0.0, ask.wire)
        self.history.add(Kept(turn, answer, place.after, place.given, b""))

    def found(self, ask: Ask) -> tuple[str, tuple[str, ...]]:
        """The turn that is continued, and the results that follow it, in order."""
        place = self.history.place(joined(ask.messages), ask.tools)
        return place.after, tuple(message.text for message in place.new if message.role == "tool")


said = st.fixed_dictionaries(
    {
        "text": st.sampled_from(["", "Look.", " Look.\n\nThen. "]),
        "reasoning": st.sampled_from(["", "hm"]),
        "calls": st.lists(st.sampled_from(ARGUMENTS), max_size=3),
        "rewrites": st.booleans(),  # arguments: keys in another order, numbers by schema
        "strips": st.booleans(),  # white space around the text
        "forgets_ids": st.booleans(),
        "forgets_reasoning": st.booleans(),
        "turns_results": st.booleans(),
        "as_parts": st.booleans(),  # a string becomes a list of parts, or the other way round
    }
).filter(lambda case: case["text"].strip() or case["calls"])
Case = Mapping[str, Any]


def answer_of(case: Case) -> Answer:
    calls = tuple(ToolCall(f"{TURN}x{n}", "bash", sampled) for n, (sampled, _) in enumerate(case["calls"]))
    return Answer(TURN, case["text"], case["reasoning"], calls, "calls" if calls else "stop", 1, 1)


def text_of(case: Case) -> str:
    return str(case["text"].strip() if case["strips"] else case["text"])


def check(parse: Callable[[bytes, Mapping[str, str]], Ask], case: Case, first: dict[str, Any], second: dict[str, Any]) -> None:
    execution = Execution()
    execution.answered(parse(json.dumps(first).encode(), {}), answer_of(case))
    after, results = execution.found(parse(json.dumps(second).encode(), {}))
    assert after == TURN
    if not case["forgets_ids"]:
        assert results == tuple(f"result {n}" for n in range(len(case["calls"])))


def results_of(case: Case) -> list[int]:
    numbers = list(range(len(case["calls"])))
    return numbers[::-1] if case["turns_results"] and not case["forgets_ids"] else numbers


@settings(max_examples=80)
@given(case=said)
def test_in_chat(case: Case) -> None:
    sent = json.loads(chat.Reply(Ask("chat", ())).whole(answer_of(case)))["choices"][0]["message"]
    back: dict[str, Any] = {"role": "assistant", "content": text_of(case) or (None if case["as_parts"] else "")}
    if case["as_parts"] and text_of(case):
        back["content"] = [{"type": "text", "text": text_of(case)}]
    if sent.get("reasoning_content") and not case["forgets_reasoning"]:
        back["reasoning_content"] = sent["reasoning_content"]
    calls = sent.get("tool_calls") or []
    for number, call in enumerate(calls):
        if case["forgets_ids"]:
            call["id"] = f"own-{number}"
        if case["rewrites"]:
            call["function"]["arguments"] = case["calls"][number][1]
    if calls:
        back["tool_calls"] = calls
    results = [{"role": "tool", "tool_call_id": calls[n]["id"], "content": f"result {n}"} for n in results_of(case)]
    start = {"role": "user", "content": "go"}
    also = {"role": "user", "content": [{"type": "text", "text": "go"}]} if case["as_parts"] else start
    check(chat.parse, case, {"messages": [start]}, {"messages": [also, back, *results, {"role": "user", "content": "more"}]})


@settings(max_examples=80)
@given(case=said, thinking=st.booleans())
def test_in_messages(case: Case, thinking: bool) -> None:
    """Text after a tool's use is moved before it, cache marks wander, thinking blocks and ids come back verbatim."""
    content = json.loads(messages.Reply(Ask("messages", (), thinking=thinking)).whole(answer_of(case)))["content"]
    content = [block for block in content if block["type"] != "text" or block["text"].strip()]
    number = 0
    for block in content:
        if block["type"] == "text":
            block["text"] = text_of(case)
        if block["type"] == "tool_use":
            if case["forgets_ids"]:
                block["id"] = f"toolu_own{number}"
            if case["rewrites"]:
                block["input"] = json.loads(case["calls"][number][1])
            number += 1
    if case["forgets_reasoning"] and (case["text"].strip() or number):
        content = [block for block in content if block["type"] != "thinking"]
    content[-1]["cache_control"] = {"type": "ephemeral"}
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": ids[n], "content": f"result {n}"} for n in results_of(case)]
    start = {"role": "user", "content": "go"}
    also = {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]} if case["as_parts"] else start
    history = [also, {"role": "assistant", "content": content}, {"role": "user", "content": [*results, {"type": "text", "text": "more"}]}]
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "Be brief."}]
    other = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=2"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    check(messages.parse, case, {"messages": [start], "system": system}, {"messages": history, "system": other})


@settings(max_examples=80)
@given(case=said, encrypted=st.booleans())
def test_in_responses(case: Case, encrypted: bool) -> None:
    items = json.loads(responses.Reply(Ask("responses", (), thinking=encrypted)).whole(answer_of(case)))["output"]
    if case["forgets_reasoning"] or case["forgets_ids"]:
        items = [item for item in items if item["type"] != "reasoning"]
    number = 0
    for item in items:
        if case["as_parts"] or case["forgets_ids"]:
            item.pop("id")
            item.pop("status", None)
        if item["type"] == "message":
            item["content"] = text_of(case) if case["strips"] else [{"type": "output_text", "text": case["text"]}]
        if item["type"] == "function_call":
            if case["forgets_ids"]:
                item["call_id"] = f"own-{number}"
            if case["rewrites"]:
                item["arguments"] = case["calls"][number][1]
            number += 1
    ids = [item["call_id"] for item in items if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": ids[n], "output": f"result {n}"} for n in results_of(case)]
    more = {"role": "user", "content": [{"type": "input_text", "text": "more"}]}
    check(responses.parse, case, {"input": "go"}, {"input": [{"role": "user", "content": "go"}, *items, *results, more]})


def test_an_answer_of_thoughts_alone_that_a_harness_drops_leaves_a_leaf_and_no_confusion() -> None:
    """Claude Code forgets such an answer and adds a note to the user's message: a branch from where that stood."""
    execution = Execution()
    start = {"messages": [{"role": "user", "content": "go"}]}
    parse = messages.parse
    execution.answered(parse(json.dumps(start).encode(), {}), Answer(TURN, "", "hm", (), "stop", 1, 1))
    noted = {"messages": [{"role": "user", "content": [{"type": "text", "text": "go"}, {"type": "text", "text": "[The last answer was empty]"}]}]}
    assert execution.found(parse(json.dumps(noted).encode(), {})) == ("", ())
    kept = {"messages": [*start["messages"], {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": TURN}]}]}
    assert execution.found(parse(json.dumps(kept).encode(), {})) == (TURN, ())
