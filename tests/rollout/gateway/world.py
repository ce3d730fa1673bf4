"""A gateway with all its neighbours on loopback: engines that sample what they are told, and a conductor that takes turns. Only they are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tidemill.api.rljob import Tools
from tidemill.trajectory.records import Turn
from tidemill.wire.engine import Generate, Sampled, Sampling, read_generate
from tidemill.wire.gateway import Closed, GatewayClient, GatewayState, OpenExecution, Route, Turns
from tidemill_rollout.gateway.process import Running, Settings, running
from tidemill_rollout.gateway.render import Renderer

TOKEN = "the-job"
END = 258  # <|im_end|>

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CHATML_WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message['content'] }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}\n<tool_call>\n"
    "{{ {'name': call['function']['name'], 'arguments': call['function']['arguments']} | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model_folder(folder: Path, template: str = CHATML) -> Path:
    """Tokenizer and template of a model whose tokens are bytes: token 104 is "h"."""
    folder.mkdir(parents=True, exist_ok=True)
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    symbols = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: byte for byte, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def text_of(tokens: tuple[int, ...] | list[int]) -> str:
    special = {256: b"<|endoftext|>", 257: b"<|im_start|>", 258: b"<|im_end|>"}
    return b"".join(special.get(token) or bytes([token]) for token in tokens).decode()


def tokens_of(text: str, ends: bool = True) -> list[int]:
    return [*text.encode(), *([END] if ends else [])]


def logprob_of(token: int) -> float:
    return -token / 1024


class ScriptedEngine:
    """Samples `say(prompt)` one token a run; a call that was resubmitted is continued where it stands."""

    def __init__(self, cell: str, say: Callable[[str], str]) -> None:
        self.cell = cell
        self.say = say
        self.version = 0
        self.requests: list[Generate] = []
        self.left: list[str] = []  # request ids that were hung up on
        self.hold_after: int | None = None  # tokens of one stay, then it waits
        self.cut_after: int | None = None  # tokens of one stay, then the connection breaks
        self.refuses = False
        self.seconds: Callable[[str], float] = lambda prompt: 0.0  # before the first token
        self.holding = asyncio.Event()
        self.go = asyncio.Event()
        self.url = ""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/inference/v1/generate", self._generate)
        return app

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        generate = read_generate.decode(await request.read())
        self.requests.append(generate)
        if self.refuses:
            return web.Response(status=409, text="another epoch")
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await self._sample(request, response, generate)
        except (ConnectionError, asyncio.CancelledError):
            self.left.append(generate.request_id)
            raise
        return response

    async def _sample(self, request: web.Request, response: web.StreamResponse, generate: Generate) -> None:
        opening = tokens_of("<|im_start|>assistant\n", ends=False)
        start = _last(list(generate.token_ids), [257, *opening[len("<|im_start|>") :]])
        sampled = list(generate.token_ids[start:])
        prompt = text_of(generate.token_ids[:start])
        await asyncio.sleep(self.seconds(prompt))
        answer = tokens_of(self.say(prompt))
        assert answer[: len(sampled)] == sampled, "resubmitted with other tokens than were sampled"
        for position, token in enumerate(answer[len(sampled) :]):
            if position == self.cut_after:
                assert request.transport is not None
                request.transport.abort()
                return
            if position == self.hold_after:
                self.holding.set()
                while not self.go.is_set():  # a write is what notices that the gateway has left
                    await response.write(b"\n")
                    await asyncio.sleep(0.002)
            last = token == END
            reason = "stop" if last else "length" if position + 1 == generate.sampling.max_tokens else ""
            run = Sampled((token,), (logprob_of(token),), (self.version,), reason)
            await response.write(msgspec.json.encode(run) + b"\n")
            if reason:
                return


class ScriptedConductor:
    def __init__(self) -> None:
        self.turns: dict[str, Turn] = {}
        self.down = False
        self.asked = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/executions/{execution}/turns", self._take)
        return app

    async def _take(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.down:
            return web.Response(status=503)
        turns = msgspec.json.decode(await request.read(), type=Turns)
        self.turns |= {turn.id: turn for turn in turns.turns}
        return web.Response(text="{}")


class World:
    def __init__(self, folder: Path, say: Callable[[str], str], cells: int, tools: Tools, template: str, call_seconds: float) -> None:
        self.folder = folder
        self.engines = {f"cell-{n}": ScriptedEngine(f"cell-{n}", say) for n in range(cells)}
        self.conductor = ScriptedConductor()
        self.conductor_url = ""
        self.session: aiohttp.ClientSession
        self.client: GatewayClient
        self.now: Running
        self.model = model_folder(folder / "model", template)
        self.renderer = Renderer(self.model, tools)
        self.pulse_seconds = 15.0
        self.max_length = 4096
        self.call_seconds = call_seconds

    @property
    def url(self) -> str:
        return self.now.url

    @property
    def turns(self) -> list[Turn]:
        """What the conductor has, in the order it got it."""
        return list(self.conductor.turns.values())

    @contextlib.asynccontextmanager
    async def gateway(self) -> AsyncIterator[Running]:
        """A gateway on this world's journal. Left and entered again it is a restart."""
        settings = Settings(
            journal=self.folder / "gateway-0.db",
            host="127.0.0.1",
            port=0,
            socket=self.folder / "gateway.sock",
            conductor_url=self.conductor_url,
            credential=TOKEN,
            max_length=self.max_length,
            call_seconds=self.call_seconds,
            pulse_seconds=self.pulse_seconds,
            journal_retry_seconds=0.01,
            job="tiny",
        )
        async with running(settings, self.renderer) as self.now:
            self.client = GatewayClient(self.now.url, TOKEN, self.session)
            yield self.now

    async def open(self, execution: str = "e1", attempt: int = 1, *, key: str = "", max_tokens: int = 512, harness: str = "react") -> str:
        """Returns the key."""
        opened = self.opened(execution, attempt, key=key, max_tokens=max_tokens, harness=harness)
        await self.client.open(opened)
        return opened.key

    def opened(self, execution: str, attempt: int = 1, *, key: str = "", max_tokens: int = 512, harness: str = "react") -> OpenExecution:
        key = key or f"key-of-{execution}"
        return OpenExecution(execution, attempt, key, harness, Sampling(max_tokens=max_tokens), deadline=time.time() + 600)

    async def route(self, *cells: str, epoch: int = 1, capacity: int = 8) -> None:
        for cell in cells or self.engines:
            await self.client.put_route(self.route_to(cell, epoch, capacity))

    def route_to(self, cell: str, epoch: int = 1, capacity: int = 8, version: int = 0) -> Route:
        return Route(cell, epoch, version, self.engines[cell].url, capacity, ordinal=int(cell.removeprefix("cell-")))

    async def close(self, execution: str = "e1", attempt: int = 1) -> Closed:
        return await self.client.close(execution, attempt)

    async def state(self) -> GatewayState:
        return await self.client.state()

    async def ask(self, text: str, execution: str = "e1", *, before: tuple[dict[str, str], ...] = (), **fields: object) -> str:
        """One chat call, not streamed; the text of the answer."""
        messages = [*before, {"role": "user", "content": text}]
        async with self.post(f"/x/{execution}/v1/chat/completions", {"messages": messages, **fields}, key=f"key-of-{execution}") as response:
            body = await response.json()
            assert response.status == 200, body
            return str(body["choices"][0]["message"]["content"])

    def post(self, path: str, body: object, *, key: str) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.session.post(self.url + path, json=body, headers={"Authorization": f"Bearer {key}"})


@contextlib.asynccontextmanager
async def world(
    folder: Path,
    say: Callable[[str], str] = lambda prompt: "hello",
    *,
    cells: int = 1,
    tools: Tools = Tools.TEXT,
    template: str = CHATML,
    pulse_seconds: float = 15.0,
    call_seconds: float = 30.0,
    max_length: int = 4096,
) -> AsyncIterator[World]:
    """Engines routed, execution `e1` open with key `key-of-e1`."""
    made = World(folder, say, cells, tools, template, call_seconds)
    made.pulse_seconds = pulse_seconds
    made.max_length = max_length
    async with contextlib.AsyncExitStack() as stack:
        for engine in made.engines.values():
            engine.url = await stack.enter_async_context(serving(engine.application()))
        made.conductor_url = await stack.enter_async_context(serving(made.conductor.application()))
        made.session = await stack.enter_async_context(aiohttp.ClientSession())
        await stack.enter_async_context(made.gateway())
        await made.open()
        await made.route()
        yield made
        for engine in made.engines.values():
            engine.go.set()


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def until(holds: Callable[[], bool], deadline_seconds: float = 10.0) -> None:
    async with asyncio.timeout(deadline_seconds):
        while not holds():
            await asyncio.sleep(0.002)


def paths(turns: list[Turn]) -> dict[str, list[int]]:
    """Every turn's tokens from the root, as the records say."""
    by_id = {turn.id: turn for turn in turns}

    def path(turn: Turn) -> list[int]:
        before = path(by_id[turn.parent]) if turn.parent else []
        return [*before, *turn.context_ids, *turn.sampled_ids]

    return {turn.id: path(turn) for turn in turns}


def _last(tokens: list[int], run: list[int]) -> int:
    """Where the last `run` in `tokens` ends."""
    for end in range(len(tokens), len(run) - 1, -1):
        if tokens[end - len(run) : end] == run:
            return end
    raise AssertionError("no answer was asked for")
