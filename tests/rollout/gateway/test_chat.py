"""OpenAI Chat Completions, through the official client."""

import json
from pathlib import Path

import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError

from tests.rollout.gateway.world import CHATML_WITH_TOOLS, END, World, logprob_of, paths, text_of, tokens_of, world
from tidemill.api.rljob import Tools

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def openai(w: World) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{w.url}/x/e1/v1", api_key="key-of-e1", max_retries=0)


async def test_an_answer_is_given_and_its_tokens_are_kept_as_sampled(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "hi there") as w:
        answer = await openai(w).chat.completions.create(model="anything", messages=[{"role": "user", "content": "hello"}])
        assert answer.choices[0].message.content == "hi there"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.model == "anything"
        assert answer.usage.completion_tokens == len("hi there") + 1
        await w.close()
        [turn] = w.turns
        assert text_of(turn.context_ids) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert list(turn.sampled_ids) == tokens_of("hi there")
        assert list(turn.logprobs) == [logprob_of(token) for token in tokens_of("hi there")]
        assert (turn.execution, turn.attempt, turn.parent, turn.wire, turn.finish_reason) == ("e1", 1, "", "chat", "stop")


async def test_a_stream_says_the_same_and_counts_tokens_when_asked(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "hi there") as w:
        stream = await openai(w).chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "hello"}], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "hi there"
        assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
        assert chunks[-1].usage.completion_tokens == 9


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tools", "template", "sampled", "arguments"),
    [
        (Tools.TEXT, CHATML_WITH_TOOLS, 'Look.\n```tool bash\n{"command":  "ls"}\n```', '{"command":  "ls"}'),
        (Tools.TEXT, CHATML_WITH_TOOLS, "Look.\n```tool bash\nls\n```", '{"command": "ls"}'),
        (
            Tools.NATIVE,
            CHATML_WITH_TOOLS,
            'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>',
            '{"command":  "ls"}',
        ),
    ],
    ids=["text", "text-plain", "native"],
)
async def test_a_tool_is_called_and_its_result_continues_the_exact_tokens(
    tmp_path: Path, stream: bool, tools: Tools, template: str, sampled: str, arguments: str
) -> None:
    def say(prompt: str) -> str:
        return "a file" if "README" in prompt else sampled

    async with world(tmp_path, say, tools=tools, template=template) as w:
        client = openai(w)
        messages: list = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "what is here?"}]
        first = await _complete(client, messages, stream)
        [call] = first["tool_calls"]
        assert first["content"] == "Look."
        assert (call["function"]["name"], call["function"]["arguments"]) == ("bash", arguments)
        # qwen-code and opencode re-serialise what they echo
        call["function"]["arguments"] = json.dumps(json.loads(arguments), separators=(",", ":"))
        messages += [
            {"role": "assistant", "content": "Look.\n ", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "README"},
        ]
        second = await _complete(client, messages, stream)
        assert second["content"] == "a file"
        await w.close()
        one, two = w.turns
        assert two.parent == one.id
        assert list(w.engines["cell-0"].requests[1].token_ids) == [*one.context_ids, *one.sampled_ids, *two.context_ids]
        assert list(one.sampled_ids) == tokens_of(sampled)
        given = text_of(two.context_ids)
        assert given.startswith("\n<|im_start|>")
        assert "README" in given
        assert given.endswith("<|im_end|>\n<|im_start|>assistant\n")
        ends = paths(w.turns)[two.id].count(END)
        assert ends == (6 if tools is Tools.NATIVE else 5)  # (tools,) system, user, answer, result, answer: each once


async def _complete(client: AsyncOpenAI, messages: list, stream: bool) -> dict:
    """The answer as a dict, put together from deltas where it is streamed."""
    if not stream:
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=[BASH])
        return answer.choices[0].message.model_dump()
    whole: dict = {"content": "", "tool_calls": []}
    async for chunk in await client.chat.completions.create(model="policy", messages=messages, tools=[BASH], stream=True):
        delta = chunk.choices[0].delta
        whole["content"] += delta.content or ""
        whole["tool_calls"] += [call.model_dump(exclude={"index"}) for call in delta.tool_calls or []]
    return whole


async def test_two_calls_in_one_answer_have_ids_of_their_own_and_results_may_come_in_any_order(tmp_path: Path) -> None:
    def say(prompt: str) -> str:
        return "done" if "Result" in prompt else "```tool bash\necho 1\n```\n```tool bash\necho 2\n```"

    async with world(tmp_path, say) as w:
        messages: list = [{"role": "user", "content": "go"}]
        first = await _complete(openai(w), messages, stream=False)
        a, b = first["tool_calls"]
        assert a["id"] != b["id"]
        results = [{"role": "tool", "tool_call_id": b["id"], "content": "two"}, {"role": "tool", "tool_call_id": a["id"], "content": "one"}]
        await _complete(openai(w), [*messages, {"role": "assistant", "content": None, "tool_calls": [a, b]}, *results], stream=False)
        await w.close()
        assert text_of(w.turns[1].context_ids).index("one") < text_of(w.turns[1].context_ids).index("two")


async def test_what_cannot_be_read_as_a_call_stays_text(tmp_path: Path) -> None:
    said = "```tool edit\n{not json}\n```"
    async with world(tmp_path, lambda prompt: said) as w:
        answer = await _complete(openai(w), [{"role": "user", "content": "go"}], stream=False)
        assert answer["content"] == said
        assert not answer["tool_calls"]


async def test_a_stop_string_ends_the_answer_and_is_not_shown(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "one STOP two three four five six") as w:
        answer = await openai(w).chat.completions.create(model="policy", messages=[{"role": "user", "content": "go"}], stop=["STOP"])
        assert answer.choices[0].message.content == "one "
        await w.close()
        assert text_of(w.turns[0].sampled_ids).startswith("one STOP")  # as sampled; the rest may have been under way


async def test_fewer_tokens_may_be_asked_for_but_not_more_than_the_job_allows(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "x" * 100) as w:
        await w.close()
        await w.open(attempt=2, max_tokens=7)
        for asked, got in ((3, 3), (50, 7)):
            answer = await openai(w).chat.completions.create(model="policy", messages=[{"role": "user", "content": f"{asked}"}], max_tokens=asked)
            assert answer.choices[0].message.content == "x" * got
            assert answer.choices[0].finish_reason == "length"


async def test_an_answer_cut_by_its_length_is_closed_with_given_tokens(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "abcdef") as w:
        assert await w.ask("go", max_tokens=3) == "abc"
        await w.ask("more", before=({"role": "user", "content": "go"}, {"role": "assistant", "content": "abc"}))
        await w.close()
        one, two = w.turns
        assert two.parent == one.id
        assert text_of(two.context_ids).startswith("<|im_end|>\n<|im_start|>user\nmore")


async def test_where_the_template_has_no_place_to_cut_a_turn_is_rendered_whole_and_still_found_again(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ '<|im_end|>' if loop.last else '<|endoftext|>' }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    async with world(tmp_path, template=template) as w:
        history: tuple[dict[str, str], ...] = ()
        for text in ("one", "two", "three"):
            said = await w.ask(text, before=history)
            history = (*history, {"role": "user", "content": text}, {"role": "assistant", "content": said})
        await w.close()
        assert [turn.parent for turn in w.turns] == ["", "", ""]
        assert [list(turn.sampled_ids) for turn in w.turns] == [tokens_of("hello")] * 3  # each sampled once, elsewhere given
        assert text_of(w.turns[2].context_ids).count("hello<|endoftext|>") == 2


async def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_know(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        with pytest.raises(BadRequestError, match="maximum context length is 4095 tokens") as error:
            await openai(w).chat.completions.create(model="policy", messages=[{"role": "user", "content": "x" * 5000}])
        assert error.value.code == "context_length_exceeded"


async def test_max_tokens_is_clipped_to_what_fits(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await openai(w).chat.completions.create(model="policy", messages=[{"role": "user", "content": "x" * 4000}])
        [request] = w.engines["cell-0"].requests
        assert len(request.token_ids) + request.sampling.max_tokens == 4096


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"messages": [{"role": "user", "content": "a"}], "n": 2}, "n is 2"),
        ({"messages": []}, "at least one"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "wizard"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "image_url"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "tool_call_id"),
        ({"messages": [{"role": "user", "content": 3}]}, "content"),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": 0}, "max_tokens"),
        ({}, "messages"),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong(tmp_path: Path, body: dict, words: str) -> None:
    async with world(tmp_path) as w, w.post("/x/e1/v1/chat/completions", body, key="key-of-e1") as response:
        assert response.status == 400
        assert words in (await response.json())["error"]["message"]


async def test_models_are_listed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        assert [model.id async for model in openai(w).models.list()] == ["policy"]


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_shown_when_they_are_asked_for(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, lambda prompt: "né") as w:
        fields: dict = {"model": "policy", "messages": [{"role": "user", "content": "go"}], "logprobs": True}
        if stream:
            chunks = [chunk async for chunk in await openai(w).chat.completions.create(stream=True, **fields)]
            [shown] = [choice.logprobs.content for chunk in chunks for choice in chunk.choices if choice.logprobs]
        else:
            shown = (await openai(w).chat.completions.create(**fields)).choices[0].logprobs.content
        assert [one.logprob for one in shown] == [logprob_of(token) for token in tokens_of("né")]
        assert bytes(byte for one in shown for byte in one.bytes) == "né<|im_end|>".encode()
        assert shown[0].token == "n"


async def test_errors_are_the_clients_own_exceptions(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        messages: list = [{"role": "user", "content": "a"}]
        with pytest.raises(AuthenticationError, match="this key"):
            await AsyncOpenAI(base_url=f"{w.url}/x/e1/v1", api_key="no", max_retries=0).chat.completions.create(model="m", messages=messages)
        with pytest.raises(NotFoundError, match="no such route"):
            await openai(w).embeddings.create(model="m", input="a")
        with pytest.raises(BadRequestError, match="n is 3"):
            await openai(w).chat.completions.create(model="m", messages=messages, n=3)
        with pytest.raises(BadRequestError, match="top_logprobs"):
            await openai(w).chat.completions.create(model="m", messages=messages, logprobs=True, top_logprobs=5)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thought_is_shown_as_reasoning_and_comes_back(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path, lambda prompt: "<think>hm</think>\nhi") as w:
        fields: dict = {"model": "policy", "messages": [{"role": "user", "content": "go"}]}
        if stream:
            chunks = [chunk async for chunk in await openai(w).chat.completions.create(stream=True, **fields)]
            thought = "".join(getattr(c.delta, "reasoning_content", None) or "" for chunk in chunks for c in chunk.choices)
        else:
            thought = (await openai(w).chat.completions.create(**fields)).choices[0].message.reasoning_content
        assert thought == "hm"
        before = ({"role": "user", "content": "go"}, {"role": "assistant", "content": "hi", "reasoning_content": "hm"})
        await w.ask("more", before=before)
        await w.close()
        assert w.turns[1].parent == w.turns[0].id


async def test_a_history_that_was_taken_apart_otherwise_is_found_by_its_tokens(tmp_path: Path) -> None:
    """A harness that quotes the thought in the text, as some do that know no reasoning_content."""
    async with world(tmp_path, lambda prompt: "<think>hm</think>b" if prompt.count("assistant\n") == 1 else "d") as w:
        assert await w.ask("a") == "b"
        await w.ask("c", before=({"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>hm</think>b"}))
        await w.close()
        one, two = w.turns
        assert two.parent == one.id
        assert text_of(two.context_ids) == "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
        assert two.given_by == ("user",)
