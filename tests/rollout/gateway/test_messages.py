"""Anthropic Messages, through the official client."""

from pathlib import Path

import pytest
from anthropic import AsyncAnthropic, BadRequestError

from tests.rollout.gateway.world import CHATML_WITH_TOOLS, World, text_of, tokens_of, until, world
from tidemill.api.rljob import Tools

BASH = {"name": "bash", "description": "Run a command", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}


def anthropic(w: World) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=f"{w.url}/x/e1", api_key="key-of-e1", max_retries=0)


async def _complete(w: World, messages: list, stream: bool, **fields: object) -> dict:
    fields = {"model": "claude-anything", "max_tokens": 100, "messages": messages, **fields}
    if not stream:
        return (await anthropic(w).messages.create(**fields)).model_dump()
    async with anthropic(w).messages.stream(**fields) as events:
        return (await events.get_final_message()).model_dump()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_given_with_a_fresh_id(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, lambda prompt: "hi there") as w:
        first = await _complete(w, [{"role": "user", "content": "hello"}], stream, system="Be brief.")
        second = await _complete(w, [{"role": "user", "content": "hello"}], stream, system="Be brief.")
        assert [block["text"] for block in first["content"]] == ["hi there"]
        assert first["stop_reason"] == "end_turn"
        assert first["usage"]["output_tokens"] == 9
        assert first["id"] != second["id"]
        await w.close()
        assert (
            text_of(w.turns[0].context_ids) == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        )
        assert len(w.turns) == 2  # delivered in full, so the same request again is a new call


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", list(Tools))
async def test_tools_are_used_and_results_continue_the_exact_tokens(tmp_path: Path, stream: bool, tools: Tools) -> None:
    sampled = {
        Tools.TEXT: 'Look.\n```tool bash\n{"command":  "ls", "n": 1000.0}\n```',
        Tools.NATIVE: 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command":  "ls", "n": 1000.0}}\n</tool_call>',
    }[tools]

    async with world(tmp_path, lambda prompt: "a file" if "README" in prompt else sampled, tools=tools, template=CHATML_WITH_TOOLS) as w:
        messages: list = [{"role": "user", "content": [{"type": "text", "text": "what is here?", "cache_control": {"type": "ephemeral"}}]}]
        first = await _complete(w, messages, stream, tools=[BASH])
        text, call = first["content"]
        assert text["text"] == "Look."
        assert (call["name"], call["input"], first["stop_reason"]) == ("bash", {"command": "ls", "n": 1000.0}, "tool_use")
        call["input"]["n"] = 1000  # as Claude Code re-serialises it
        messages = [
            {"role": "user", "content": "what is here?"},
            {"role": "assistant", "content": [text, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "README"}]}]},
        ]
        second = await _complete(w, messages, stream, tools=[BASH])
        assert [block["text"] for block in second["content"]] == ["a file"]
        await w.close()
        one, two = w.turns
        assert two.parent == one.id
        assert list(one.sampled_ids) == tokens_of(sampled)
        assert list(w.engines["cell-0"].requests[1].token_ids) == [*one.context_ids, *one.sampled_ids, *two.context_ids]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thinking_block_carries_the_turn_id_so_that_even_a_changed_text_is_recognised(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, lambda prompt: "<think>hm</think>\nhi") as w:
        first = await _complete(w, [{"role": "user", "content": "hello"}], stream, thinking={"type": "adaptive"})
        thinking, text = first["content"]
        assert (thinking["thinking"], text["text"]) == ("hm", "hi")
        history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": [thinking, {"type": "text", "text": "something else"}]}]
        await _complete(w, [*history, {"role": "user", "content": "more"}], stream, thinking={"type": "adaptive"})
        await w.close()
        assert w.turns[1].parent == w.turns[0].id


@pytest.mark.parametrize("thinking", [False, True])
async def test_a_long_wait_is_filled_with_events_that_watchdogs_count(tmp_path: Path, thinking: bool) -> None:
    async with world(tmp_path, lambda prompt: "hi there", pulse_seconds=0.01) as w:
        engine = w.engines["cell-0"]
        engine.hold_after = 3
        body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "go"}]}
        if thinking:
            body["thinking"] = {"type": "adaptive"}
        kinds: list[str] = []
        async with anthropic(w).messages.stream(**body) as events:
            async for event in events:
                kinds.append(event.type)
                if kinds.count("content_block_delta") == 3:
                    engine.go.set()
            whole = await events.get_final_message()
        assert "ping" not in kinds
        assert kinds[0] == "message_start"
        assert [block.type for block in whole.content] == (["thinking", "text"] if thinking else ["text"])
        assert whole.content[-1].text == "hi there"


async def test_system_messages_stand_where_they_are_and_the_billing_line_is_dropped(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        system = [{"type": "text", "text": "x-anthropic-billing-header: cch=123"}, {"type": "text", "text": "Be brief."}]
        messages = [
            {"role": "user", "content": "a"},
            {"role": "system", "content": [{"type": "text", "text": "note"}]},
            {"role": "user", "content": "b"},
        ]
        body = {"model": "m", "max_tokens": 5, "system": system, "messages": messages}
        async with w.post("/x/e1/v1/messages?beta=true", body, key="key-of-e1") as response:
            assert response.status == 200
        await w.close()
        given = text_of(w.turns[0].context_ids)
        assert given.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>system\nnote<|im_end|>\n")


async def test_a_sub_agent_is_named_by_its_header(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}
        headers = {"x-api-key": "key-of-e1", "x-claude-code-agent-id": "agent-3"}
        async with w.session.post(f"{w.url}/x/e1/v1/messages", json=body, headers=headers) as response:
            assert response.status == 200
        await w.close()
        assert [turn.agent for turn in w.turns] == ["agent-3"]


async def test_tokens_are_counted_without_sampling(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        counted = await anthropic(w).messages.count_tokens(model="m", messages=[{"role": "user", "content": "hello"}])
        assert counted.input_tokens == len("suser\nhelloe\nsassistant\n")  # s, e: one token each
        assert not w.engines["cell-0"].requests


async def test_a_prompt_that_is_too_long_makes_claude_code_compact(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        with pytest.raises(BadRequestError, match=r"prompt is too long: 50\d\d tokens > 4095 maximum"):
            await _complete(w, [{"role": "user", "content": "x" * 5000}], stream=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_behind_a_begun_answer_makes_the_harness_retry(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, pulse_seconds=0.01, call_seconds=0.2) as w:
        w.engines["cell-0"].hold_after = 2
        body = {"model": "m", "max_tokens": 50, "stream": stream, "messages": [{"role": "user", "content": "go"}]}
        async with w.post("/x/e1/v1/messages", body, key="key-of-e1") as response:
            assert response.status == 200
            if stream:
                assert b"event: error" in await response.read()
            else:
                with pytest.raises(Exception, match="payload"):
                    await response.read()
        await until(lambda: len(w.engines["cell-0"].left) == 1)
        assert not w.turns


async def test_images_are_refused_in_the_shape_of_the_wire(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
        with pytest.raises(BadRequestError, match="'image' are not supported") as error:
            await _complete(w, [{"role": "user", "content": [image]}], stream=False)
        assert error.value.body["error"]["type"] == "invalid_request_error"


async def test_claude_code_may_ask_for_its_greeting_without_a_key(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.session.head(f"{w.url}/x/e1/api/hello") as response:
        assert response.status == 200
