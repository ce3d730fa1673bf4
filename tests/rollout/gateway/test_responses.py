"""OpenAI Responses, through the official client and event by event."""

import json
from pathlib import Path

import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError

from tests.rollout.gateway.world import CHATML_WITH_TOOLS, World, text_of, tokens_of, until, world
from tidemill.api.rljob import Tools

BASH = {
    "type": "function",
    "name": "bash",
    "description": "Run a command",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    "strict": False,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
HOSTED = [
    {"type": "web_search"},
    {"type": "image_generation"},
    {"type": "local_shell"},
    {"type": "tool_search"},
    {"type": "of_next_year", "name": {}},
]


def openai(w: World, key: str = "key-of-e1") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{w.url}/x/e1/v1", api_key=key, max_retries=0)


async def _complete(w: World, conversation: str | list, stream: bool, **fields: object) -> dict:
    """The finished response as a dict. Streamed, it must also be what its events build up."""
    fields = {"model": "policy", "input": conversation, "store": False, **fields}
    if not stream:
        return (await openai(w).responses.create(**fields)).model_dump(exclude_none=True)
    events = [event async for event in await openai(w).responses.create(stream=True, **fields)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    last = events[-1].response
    built = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in built] == [item.model_dump() for item in last.output]
    for item in last.output:
        if item.type == "message":
            assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == item.content[0].text
        if item.type == "function_call":
            assert item.arguments in [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    return last.model_dump(exclude_none=True)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_given_with_fresh_ids(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, lambda prompt: "hi there") as w:
        first = await _complete(w, "hello", stream, instructions="Be brief.")
        second = await _complete(w, [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}], stream, instructions="Be brief.")
        [item] = first["output"]
        assert (item["type"], item["content"][0]["text"], first["status"]) == ("message", "hi there", "completed")
        assert first["usage"]["output_tokens"] == 9
        assert first["usage"]["total_tokens"] == 9 + first["usage"]["input_tokens"]
        assert first["id"] != second["id"]
        assert item["id"] != second["output"][0]["id"]
        await w.close()
        assert [turn.wire for turn in w.turns] == ["responses"] * 2
        assert list(w.turns[0].context_ids) == list(w.turns[1].context_ids)  # text, or parts of text
        assert text_of(w.turns[0].context_ids) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", list(Tools))
async def test_parallel_calls_come_back_as_items_and_continue_the_exact_tokens(tmp_path: Path, stream: bool, tools: Tools) -> None:
    """As Codex does it: reasoning verbatim, then each item of the answer, without ids; results in any order."""
    sampled = {
        Tools.TEXT: '<think>hm</think>\n\nLook.\n```tool bash\n{"command":  "ls"}\n```\n```tool bash\npwd\n```',
        Tools.NATIVE: '<think>hm</think>\n\nLook.\n<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "bash", "arguments": {"command": "pwd"}}\n</tool_call>',
    }[tools]
    async with world(tmp_path, lambda prompt: "two files" if "README" in prompt else sampled, tools=tools, template=CHATML_WITH_TOOLS) as w:
        fields: dict = {"tools": [BASH, *HOSTED], "include": ["reasoning.encrypted_content"], "parallel_tool_calls": True}
        first = await _complete(w, "what is here?", stream, **fields)
        thought, said, one, two = first["output"]
        assert thought["summary"] == [{"type": "summary_text", "text": "hm"}]
        assert said["content"][0]["text"] == "Look."
        assert [call["arguments"] for call in (one, two)] == ['{"command":  "ls"}', '{"command": "pwd"}']
        assert one["call_id"] != two["call_id"]
        for item in first["output"]:
            item.pop("id")
        thought["id"] = "rs_x"
        results = [
            {"type": "function_call_output", "call_id": two["call_id"], "output": "/work"},
            {"type": "function_call_output", "call_id": one["call_id"], "output": [{"type": "input_text", "text": "README"}]},
        ]
        second = await _complete(w, [{"role": "user", "content": "what is here?"}, *first["output"], *results], stream, **fields)
        assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
        await w.close()
        first_turn, second_turn = w.turns
        assert second_turn.parent == first_turn.id == thought["encrypted_content"]
        assert list(first_turn.sampled_ids) == tokens_of(sampled)
        assert list(w.engines["cell-0"].requests[1].token_ids) == [
            *first_turn.context_ids,
            *first_turn.sampled_ids,
            *second_turn.context_ids,
        ]
        given = text_of(second_turn.context_ids)
        assert given.index("README") < given.index("/work")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_gets_plain_text_and_its_result_continues_the_turn(tmp_path: Path, stream: bool) -> None:
    said = "```tool apply_patch\n*** Begin Patch\n+é\n*** End Patch\n```"
    async with world(tmp_path, lambda prompt: "done" if "Result" in prompt else said) as w:
        first = await _complete(w, "go", stream, tools=[PATCH])
        [call] = first["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "*** Begin Patch\n+é\n*** End Patch")
        call.pop("id")
        result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
        second = await _complete(w, [{"role": "user", "content": "go"}, call, result], stream, tools=[PATCH])
        assert second["output"][0]["content"][0]["text"] == "done"
        await w.close()
        assert w.turns[1].parent == w.turns[0].id
        assert "lark grammar:\nstart: /.+/" in text_of(w.turns[0].context_ids)


async def test_tools_in_namespaces_are_offered_and_called_by_both_names(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "done" if "Result" in prompt else "```tool mcp__files.bash\nls\n```") as w:
        space = {"type": "namespace", "name": "mcp__files", "description": "", "tools": [BASH, PATCH]}
        first = await _complete(w, "go", stream=False, tools=[space])
        [call] = first["output"]
        assert (call["namespace"], call["name"], call["arguments"]) == ("mcp__files", "bash", '{"command": "ls"}')
        back = [{"role": "user", "content": "go"}, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "a"}]
        await _complete(w, back, stream=False, tools=[space])
        await w.close()
        assert w.turns[1].parent == w.turns[0].id


async def test_what_hosted_tools_left_behind_is_passed_over_and_an_image_in_a_result_becomes_a_note(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        call = {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:"}]}
        search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
        strange = {"type": "function_call_output", "call_id": "c", "output": {"content": 1.5}}
        tool_search = {"type": "tool_search_call", "call_id": "s", "arguments": {"query": "x"}, "execution": "client"}
        await _complete(w, [{"role": "user", "content": "go"}, search, tool_search, call, result, strange], stream=False)
        await w.close()
        given = text_of(w.turns[0].context_ids)
        assert "[input_image: the model reads text only]" in given
        assert '{"content":1.5}' in given
        assert "search" not in given


async def test_an_answer_is_found_by_its_item_id_where_no_reasoning_is_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "hi") as w:
        first = await _complete(w, "hello", stream=False)
        first["output"][0]["content"][0]["text"] = "changed"
        await _complete(w, [{"role": "user", "content": "hello"}, *first["output"], {"role": "user", "content": "more"}], stream=False)
        await w.close()
        assert w.turns[1].parent == w.turns[0].id


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_cut_by_its_length_is_incomplete(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, lambda prompt: "abcdef") as w:
        cut = await _complete(w, "go", stream, max_output_tokens=3)
        assert (cut["status"], cut["incomplete_details"], cut["output"][0]["content"][0]["text"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
            "abc",
        )


async def test_the_clients_own_accumulator_follows_a_stream_with_signs_of_life(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "hi there", pulse_seconds=0.01) as w:
        engine = w.engines["cell-0"]
        engine.hold_after = 3
        alive = 0
        async with openai(w).responses.stream(model="policy", input="go") as events:
            async for event in events:
                alive += event.type == "response.in_progress"
                if alive == 4:
                    engine.go.set()
            whole = await events.get_final_response()
        assert whole.output_text == "hi there"
        assert alive >= 4


async def test_a_failure_behind_a_begun_answer_is_told_as_a_failed_response(tmp_path: Path) -> None:
    async with world(tmp_path, pulse_seconds=0.01, call_seconds=0.2) as w:
        w.engines["cell-0"].hold_after = 2
        events = [event async for event in await openai(w).responses.create(model="policy", input="go", stream=True)]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.code == "server_error"
        await until(lambda: len(w.engines["cell-0"].left) == 1)
        assert not w.turns


async def test_errors_are_the_clients_own_exceptions(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        with pytest.raises(AuthenticationError, match="this key"):
            await openai(w, key="other").responses.create(model="policy", input="go")
        with pytest.raises(NotFoundError, match="no such route"):
            await openai(w).responses.retrieve("resp_1")
        with pytest.raises(BadRequestError, match="maximum context length is 4095 tokens") as error:
            await openai(w).responses.create(model="policy", input="x" * 5000)
        assert error.value.code == "context_length_exceeded"
        with pytest.raises(BadRequestError, match="previous_response_id: responses are not stored here; send the whole conversation"):
            await openai(w).responses.create(model="policy", input="go", previous_response_id="resp_1")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": []}, "at least one"),
        ({}, "input"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "background": True}, "background"),
        ({"input": [{"role": "wizard", "content": "a"}]}, "wizard"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]}, "'input_image' are not supported"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "'item_reference' are not supported"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name is missing"),
        ({"input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id is missing"),
        ({"input": "a", "tools": [{"type": "function"}]}, "missing required field `name`"),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong(tmp_path: Path, body: dict, words: str) -> None:
    async with world(tmp_path) as w, w.post("/x/e1/v1/responses", body, key="key-of-e1") as response:
        assert response.status == 400
        assert words in (await response.json())["error"]["message"]


async def test_every_line_of_a_stream_names_its_event(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.post("/x/e1/v1/responses", {"input": "a", "stream": True}, key="key-of-e1") as response:
            assert response.content_type == "text/event-stream"
            blocks = (await response.text()).strip().split("\n\n")
        for block in blocks:
            name, data = block.split("\n")
            assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
