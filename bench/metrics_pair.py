"""Two gateways, one of which counts nothing, asked in turns: what counting costs, as a share of their CPU time."""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.rollout.gateway.world import TOKEN, ScriptedConductor, ScriptedEngine, model_folder, serving
from tidemill.api.rljob import Tools
from tidemill.local.parent import die_with_parent
from tidemill.telemetry.registry import Registry
from tidemill.trajectory.records import Piece, Turn
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import GatewayClient, OpenExecution, Route
from tidemill_rollout.gateway import process as gateway_process
from tidemill_rollout.gateway import server
from tidemill_rollout.gateway.process import Settings, running
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.tally import Tally

CALLS = 150
AT_ONCE = 8
ANSWER = "this is an answer of some forty tokens, no more"
WARM_UP = 3
ALONE_ROUNDS, ALONE_CALLS = 20, 2_000


@dataclass(frozen=True)
class Pair:
    microseconds: float  # of CPU, a call, in the gateway that counts
    share: float  # more than in the one that does not
    low: float  # of a 95% interval
    high: float
    counting_microseconds: float  # a call, of counting alone


@dataclass
class _Gateway:
    pid: int
    url: str
    asked: int = 0

    def cpu_seconds(self) -> float:
        """To the nanosecond: the clock of /proc/PID/stat ticks in hundredths."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9


async def measure(rounds: int) -> Pair:
    """In each round both answer the same number of calls, and the other begins."""
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            engine = ScriptedEngine("cell-0", lambda prompt: ANSWER)
            engine.url = await stack.enter_async_context(serving(engine.application()))
            conductor = await stack.enter_async_context(serving(ScriptedConductor().application()))
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            both = {}
            for counts in (True, False):
                place = Path(folder) / ("counts" if counts else "counts-nothing")
                both[counts] = await stack.enter_async_context(_started(place, counts, conductor, engine, session))
            for gateway in both.values():
                for _ in range(WARM_UP):
                    await _round(gateway, session)
            pairs = []
            for number in range(rounds):
                took = {counts: await _round(both[counts], session) for counts in ((True, False) if number % 2 else (False, True))}
                pairs.append((took[True], took[False]))
    return _compared(pairs, _counting_alone())


def _compared(pairs: list[tuple[float, float]], counting: float) -> Pair:
    """By the median: on a machine with other work single rounds are far off. The interval is that of a median, by ranks."""
    shares = sorted(with_it / without - 1 for with_it, without in pairs)
    beside = math.ceil(math.sqrt(len(shares)))  # 1.96 standard deviations of a binomial with p = 1/2 are 0.98 sqrt(n)
    middle = len(shares) // 2
    low, high = shares[max(0, middle - beside)], shares[min(len(shares) - 1, middle + beside)]
    return Pair(1e6 * statistics.median(with_it for with_it, _ in pairs), statistics.median(shares), low, high, 1e6 * counting)


def _counting_alone() -> float:
    """CPU seconds a call."""
    tally = Tally(Registry("gateway", job="job"))
    turn = Turn("t1", "e1", 1, "", "", (1,), (Piece("cell-0", tuple(range(40)), (0.0,) * 40, (0,) * 40),), "stop", 1.0, 2.0, "chat")
    best = math.inf
    for _ in range(ALONE_ROUNDS):
        began = time.thread_time()
        for _ in range(ALONE_CALLS):
            tally.requests["chat", 200] += 1
            tally.kept(turn, 100, 1.5)
        best = min(best, (time.thread_time() - began) / ALONE_CALLS)
    return best


async def _round(gateway: _Gateway, session: aiohttp.ClientSession) -> float:
    """CPU seconds of one call."""
    before = gateway.cpu_seconds()
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(number: int) -> None:
        body = {"messages": [{"role": "user", "content": f"question {number}"}]}
        async with limit, session.post(f"{gateway.url}/x/e1/v1/chat/completions", json=body, headers={"Authorization": "Bearer key"}) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    await asyncio.gather(*(ask(gateway.asked + n) for n in range(CALLS)))
    gateway.asked += CALLS
    return (gateway.cpu_seconds() - before) / CALLS


@asynccontextmanager
async def _started(folder: Path, counts: bool, conductor: str, engine: ScriptedEngine, session: aiohttp.ClientSession) -> AsyncIterator[_Gateway]:
    model_folder(folder / "model")
    command = [sys.executable, "-m", "bench.metrics_pair", str(folder), conductor, str(counts)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, preexec_fn=die_with_parent)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        client = GatewayClient(url, TOKEN, session)
        await client.open(OpenExecution("e1", 1, "key", "react", Sampling(max_tokens=512), deadline=time.time() + 3600))
        await client.put_route(Route("cell-0", 1, 0, engine.url, capacity=64))
        yield _Gateway(process.pid, url)
    finally:
        process.kill()
        await process.wait()


class _NoTally(Tally):
    """Keeps nothing of what happens."""

    def kept(self, turn: Turn, prompt_tokens: int, first_token: float) -> None: ...


class _PlainSide(server.HarnessSide):
    async def _serve(self, request: web.Request) -> web.StreamResponse:
        return await self._dispatch(request)


async def _serve(folder: Path, conductor: str) -> None:
    settings = Settings(folder / "gateway.db", "127.0.0.1", 0, None, conductor, TOKEN, max_length=4096, call_seconds=60.0)
    async with running(settings, Renderer(folder / "model", Tools.TEXT)) as gateway:
        print(gateway.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[3] == "False":
        vars(gateway_process).update(Tally=_NoTally, HarnessSide=_PlainSide)
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))
