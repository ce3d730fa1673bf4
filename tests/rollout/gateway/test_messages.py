"""Anthropic Messages, through the official client."""

from pathlib import Path

import pytest
from anthropic import AsyncAnthropic, AuthenticationError, BadRequestError, NotFoundError

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


async def test_a_billing_line_is_dropped_from_the_front_of_a_text_and_the_rest_stays(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for digest in ("a1", "b2"):
            body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": digest}]}
            body["system"] = f"x-anthropic-billing-header: cch={digest}\nBe brief."
            async with w.post("/x/e1/v1/messages", body, key="key-of-e1") as response:
                assert response.status == 200
        await w.close()
        assert {text_of(turn.context_ids).split("<|im_end|>")[0] for turn in w.turns} == {"<|im_start|>system\nBe brief."}


async def test_an_image_in_a_tools_result_becomes_a_note_and_thoughts_of_others_are_dropped(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
        found = {"type": "tool_reference", "tool_name": "WebFetch"}
        pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aaaa"}}
        messages = [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "of another model"},
                    {"type": "redacted_thinking", "data": "xyz"},
                    {"type": "tool_use", "id": "toolu_other", "name": "Read", "input": {"__unparsedToolInput": '{"path": "a'}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_other", "content": [image, {"type": "text", "text": "ok"}, found]}, pdf],
            },
        ]
        await _complete(w, messages, stream=False)
        await w.close()
        given = text_of(w.turns[0].context_ids)
        assert '```tool Read\n{"path": "a\n```' in given
        assert "[image: the model reads text only]\nok\nThe tool WebFetch can be used now." in given
        assert "[document: the model reads text only]<|im_end|>" in given
        assert "xyz" not in given


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_cut_by_its_length_is_kept_and_gone_on_with(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, lambda prompt: "abcdef") as w:
        first = await _complete(w, [{"role": "user", "content": "go"}], stream, max_tokens=3)
        assert (first["stop_reason"], first["content"][0]["text"]) == ("max_tokens", "abc")
        history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "resume"}]
        await _complete(w, history, stream)
        await w.close()
        assert w.turns[1].parent == w.turns[0].id


async def test_what_is_asked_of_sampling_is_recorded_and_not_obeyed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        fields = {"temperature": 0.2, "top_p": 0.5, "top_k": 5, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}], **fields, "tool_choice": {"type": "any"}}
        async with w.post("/x/e1/v1/messages?beta=true", body, key="key-of-e1") as response:
            assert response.status == 200
        [request] = w.engines["cell-0"].requests
        assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
        await w.close()
        assert w.turns[0].asked == {"temperature": 0.2, "top_p": 0.5, "top_k": 5, "reasoning_effort": "high"}


async def test_errors_are_the_clients_own_exceptions(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        other = AsyncAnthropic(base_url=f"{w.url}/x/e1", api_key="another", max_retries=0)
        with pytest.raises(AuthenticationError, match="this key"):
            await other.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}])
        elsewhere = AsyncAnthropic(base_url=f"{w.url}/x/e2", api_key="key-of-e1", max_retries=0)
        with pytest.raises(NotFoundError, match="e2 is not open"):
            await elsewhere.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}])
        with pytest.raises(BadRequestError, match="max_tokens is 0"):
            await anthropic(w).messages.create(model="m", max_tokens=0, messages=[{"role": "user", "content": "a"}])


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_uses_have_ids_of_their_own_and_their_results_may_come_in_any_order(tmp_path: Path, stream: bool) -> None:
    def say(prompt: str) -> str:
        return "done" if "Result" in prompt else "Both.\n```tool bash\necho 1\n```\n```tool bash\necho 2\n```\nThen more."

    async with world(tmp_path, say) as w:
        first = await _complete(w, [{"role": "user", "content": "go"}], stream, tools=[BASH])
        text, one, two = first["content"]
        assert text["text"].split() == ["Both.", "Then", "more."]
        assert (one["input"], two["input"]) == ({"command": "echo 1"}, {"command": "echo 2"})
        assert one["id"] != two["id"]
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": word} for use, word in ((two, "second"), (one, "first"))]
        history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [text, one, two]}, {"role": "user", "content": results}]
        await _complete(w, history, stream, tools=[BASH])
        await w.close()
        assert w.turns[1].parent == w.turns[0].id
        given = text_of(w.turns[1].context_ids)
        assert given.index("first") < given.index("second")
        assert w.turns[1].given_by == ("tool", "tool")
