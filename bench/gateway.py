"""The gateway beside a bare aiohttp proxy and LiteLLM's proxy: streams a second on one core, latency that it adds, memory of an open stream.

    .venv/bin/python -m bench.gateway [--json] [--small]

Each proxy in turn runs alone on one core; what calls it and what is behind it run on another. An answer has 100 tokens, one every 10 ms. To the
other proxies they come as 100 events, from our engines as ours send them, in runs of 0.1 s ("unbatched": in 100). A request holds a whole
conversation, of which at most 2 kB are new. Ours journals each turn, renders it, and keeps its tokens. LiteLLM is installed into a folder of
its own under the cache, with uv. "capacity" is what the core could do if it did nothing else: 1 / CPU seconds of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.gateway_load import Conversation, Times, converse
from bench.gateway_proxies import Proxy, bare, direct, litellm, ours, upstream

KINDS = ("bare", "ours", "ours, unbatched", "litellm")


@dataclass(frozen=True)
class Plan:
    sizes: dict[int, int] = field(default_factory=lambda: {80_000: 300, 500_000: 100, 4_000_000: 16})  # bytes of a body: conversations at once
    kinds: tuple[str, ...] = KINDS
    seconds: float = 10.0
    at_ease: int = 10  # conversations while latency is measured
    open_streams: int = 10_000
    active: int = 500
    idle: int = 2_000


SMALL = Plan({20_000: 8}, ("bare", "ours"), seconds=2.5, at_ease=4, open_streams=60, active=0)


@dataclass
class Row:
    """One proxy at one size."""

    kind: str
    body_bytes: int
    streams_per_second: float
    capacity_per_second: float
    cpu_ms_per_stream: float
    added_p50_ms: float
    added_p99_ms: float
    failed: int
    others: float  # share of the core that went to other programs: above some percent, streams a second and latencies mean little


@dataclass
class Memory:
    streams: int
    opened: int
    kb_per_stream: float


@dataclass
class Crowd:
    """Executions that think for seconds between calls, and others that wait."""

    active: int
    idle: int
    calls_per_second: float
    core_busy: float
    added_p50_ms: float
    added_p99_ms: float
    failed: int


@dataclass
class Result:
    rows: list[Row] = field(default_factory=list)
    memory: Memory | None = None
    crowd: Crowd | None = None

    def ratios(self, size: int, kind: str) -> tuple[float, float] | None:
        """Of ours over another: streams a second as measured, and capacity."""
        found = {row.kind: row for row in self.rows if row.body_bytes == size}
        if kind not in found or not found[kind].streams_per_second:
            return None
        mine, other = found["ours"], found[kind]
        return mine.streams_per_second / other.streams_per_second, mine.capacity_per_second / other.capacity_per_second


async def measured(plan: Plan, folder: Path) -> Result:
    result = Result()
    async with upstream() as behind:
        for size, many in plan.sizes.items():
            floor = await floor_seconds(size, plan, behind)
            for kind in plan.kinds:
                result.rows.append(await row(kind, size, many, floor, plan, behind, folder))
                say(str(result.rows[-1]))
        result.memory = await memory(plan.open_streams, behind, folder)
        say(str(result.memory))
        if plan.active:
            result.crowd = await crowd(plan, behind, folder)
            say(str(result.crowd))
    return result


async def floor_seconds(size: int, plan: Plan, behind: Proxy) -> float:
    """How long an answer takes without a proxy."""
    await behind.set(paced=1)
    conversations = [Conversation(size, 1000 + number) for number in range(plan.at_ease)]
    return statistics.median((await load(direct(behind), conversations, 4.0, 1.0)).seconds)


async def row(kind: str, size: int, many: int, floor: float, plan: Plan, behind: Proxy, folder: Path) -> Row:
    async with started(kind, many, behind, folder) as proxy:
        await behind.set(paced=1, run=1 if kind.endswith("unbatched") else 10)
        if kind == "litellm":
            many = min(many, 64)  # more only wait
        conversations = [Conversation(size, seed) for seed in range(many)]
        await begun(proxy, conversations, behind)
        ease = await load(proxy, conversations[: plan.at_ease], plan.seconds, 1.0)
        before, core, began = proxy.cpu_seconds(), proxy.core_seconds(), time.perf_counter()
        full = await load(proxy, conversations, plan.seconds + 2, 2.0)
        cpu, core, wall = proxy.cpu_seconds() - before, proxy.core_seconds() - core, time.perf_counter() - began
        done = max(1, len(full.seconds))
        added = sorted(1000 * (seconds - floor) for seconds in ease.seconds) or [float("nan")]
        per_stream = cpu / wall * plan.seconds / done
        failed = full.failed + ease.failed
        if failed:
            say(f"{kind}: {len(failed)} failed, e.g. {failed[0][:200]}")
        return Row(
            kind,
            size,
            done / plan.seconds,
            1 / per_stream if per_stream else 0.0,
            1000 * per_stream,
            _at(added, 0.5),
            _at(added, 0.99),
            len(failed),
            max(0.0, core - cpu) / wall,
        )


async def begun(proxy: Proxy, conversations: list[Conversation], behind: Proxy) -> None:
    """Every conversation has had an answer, at once: what was said before it began is known."""
    await behind.set(paced=0)
    gate = asyncio.Semaphore(4)

    async def begin(number: int, conversation: Conversation) -> None:
        async with gate:
            client = proxy.client(number)
            await converse(client, conversation, time.perf_counter() + 0.001, Times(), 0.0)
            client.close()

    await asyncio.gather(*(begin(number, conversation) for number, conversation in enumerate(conversations)))
    await behind.set(paced=1)


async def load(proxy: Proxy, conversations: list[Conversation], seconds: float, warm_up: float, pause: float = 0.0) -> Times:
    times, now = Times(), time.perf_counter()
    clients = [proxy.client(number) for number in range(len(conversations))]
    pairs = zip(clients, conversations, strict=True)
    await asyncio.gather(*(converse(client, one, now + seconds, times, now + warm_up, pause) for client, one in pairs))
    for client in clients:
        client.close()
    return times


async def memory(streams: int, behind: Proxy, folder: Path) -> Memory:
    """What the gateway grows by when so many streams are open at once and none has ended. Each execution has 25."""
    executions = -(-streams // 25)
    async with started("ours", executions, behind, folder, capacity=streams // 5) as proxy:
        await behind.set(held=1)
        before = proxy.resident_bytes()
        opened = asyncio.Semaphore(0)
        clients = [proxy.client(number % executions) for number in range(streams)]
        asked = [asyncio.create_task(client.ask(Conversation(2_000, number).next(), opened.release)) for number, client in enumerate(clients)]
        count = 0
        try:
            async with asyncio.timeout(120):
                for _ in range(streams):
                    await opened.acquire()
                    count += 1
        except TimeoutError:
            say(f"only {count} of {streams} streams opened")
        grown = proxy.resident_bytes() - before
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for client in clients:
            client.close()
        await behind.set(held=0)
        return Memory(streams, count, grown / 1000 / max(1, count))


async def crowd(plan: Plan, behind: Proxy, folder: Path) -> Crowd:
    """1,000 executions are 43 calls a second at the published scale; here the active ones call twice as often."""
    pause = 10.0
    async with started("ours", plan.active + plan.idle, behind, folder) as proxy:
        await behind.set(paced=1, run=10)
        conversations = [Conversation(80_000, seed) for seed in range(plan.active)]
        await begun(proxy, conversations, behind)
        floor = await floor_seconds(80_000, plan, behind)
        before, began = proxy.cpu_seconds(), time.perf_counter()
        times = await load(proxy, conversations, 2 * plan.seconds, 0.0, pause)
        busy = (proxy.cpu_seconds() - before) / (time.perf_counter() - began)
        added = sorted(1000 * (seconds - floor) for seconds in times.seconds) or [float("nan")]
        rate = len(times.seconds) / (2 * plan.seconds)
        return Crowd(plan.active, plan.idle, rate, busy, _at(added, 0.5), _at(added, 0.99), len(times.failed))


@asynccontextmanager
async def started(kind: str, executions: int, behind: Proxy, folder: Path, capacity: int = 2048) -> AsyncIterator[Proxy]:
    async with AsyncExitStack() as stack:
        match kind:
            case "bare":
                yield await stack.enter_async_context(bare(behind))
            case "litellm":
                yield await stack.enter_async_context(litellm(behind, folder))
            case _:
                yield await stack.enter_async_context(ours(behind, folder, executions, capacity))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(result: Result) -> str:
    lines = [
        f"{'body':>8} {'proxy':<16} {'streams/s':>10} {'capacity/s':>11} {'CPU ms':>8} {'added p50':>10} {'p99 ms':>8} {'failed':>7} {'others':>7}"
    ]
    for r in result.rows:
        lines.append(
            f"{r.body_bytes / 1000:>6.0f}kB {r.kind:<16} {r.streams_per_second:>10.1f} {r.capacity_per_second:>11.1f} {r.cpu_ms_per_stream:>8.2f}"
            f" {r.added_p50_ms:>10.1f} {r.added_p99_ms:>8.1f} {r.failed:>7} {100 * r.others:>6.0f}%"
        )
    for size in dict.fromkeys(row.body_bytes for row in result.rows):
        for kind in KINDS:
            if kind != "ours" and (found := result.ratios(size, kind)) is not None:
                lines.append(f"{size / 1000:>6.0f}kB ours is {found[0]:.2f} x {kind} in streams/s, {found[1]:.2f} x in capacity")
    if result.memory:
        lines.append(f"{result.memory.opened} open streams: {result.memory.kb_per_stream:.1f} kB each")
    if result.crowd:
        c = result.crowd
        lines.append(
            f"{c.active} active and {c.idle} idle executions: {c.calls_per_second:.1f} calls/s, core {100 * c.core_busy:.0f}% busy,"
            f" added p50 {c.added_p50_ms:.1f} ms, p99 {c.added_p99_ms:.1f} ms, {c.failed} failed"
        )
    return "\n".join(lines)


def _at(ordered: list[float], quantile: float) -> float:
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--small", action="store_true", help="a few seconds, without LiteLLM: whether it runs, not how fast")
    parser.add_argument("--without-litellm", action="store_true")
    parser.add_argument("--sizes", help="bytes of a body, with commas (default: 80000,500000,4000000)")
    given = parser.parse_args()
    plan = SMALL if given.small else Plan(kinds=KINDS[:-1] if given.without_litellm else KINDS)
    if given.sizes:
        plan = Plan({int(size): Plan().sizes.get(int(size), 50) for size in given.sizes.split(",")}, plan.kinds)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        result = asyncio.run(measured(plan, Path(folder)))
    print(json.dumps(asdict(result)) if given.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
