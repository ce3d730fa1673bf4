"""The operator at scale: how long after a crossing of the waterlevel the role stands in GPUCell.spec, what a flip and the operator itself cost.

    .venv/bin/python bench/operator_scale.py [--jobs 50] [--cells 1000]

A real API server with etcd and its controllers, the operator as a process of its own with the chart's rights, and in this process stand-ins
for all conductors and agents, which speak the real protocol and check the waterlevel's rule with the product's own code. A crossing is the
moment at which that rule first lets a cell leave; "written" is the moment at which a watch of GPUCells shows the new role. Agents
acknowledge at once, so that flips come as fast as they can. Nothing is trained and no pod runs: there is no scheduler, pods stay where they are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import ssl
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from bench.operator_load import Cell, Load, Seen
from tests.cluster.api_server import ApiServer
from tests.cluster.api_server import running as api_server
from tests.cluster.operator_process import Cluster, Operator, job
from tests.cluster.operator_stand_ins import CAPACITY, SECRET, AgentStandIn
from tidemill.policy.decide import Mode, to_train
from tidemill.wire.cell import CellClient, Role, RoleOrder
from tidemill.wire.conductor import Authority, ConductorClient, GrantRequest
from tidemill.wire.http import Refused, serve
from tidemill.wire.rules import for_rules
from tidemill_operator.kube import Kube, KubeError
from tidemill_operator.resources import RESOURCES

NAMESPACE, BARE = "scale", "scale-bare"
SET_UP_SECONDS = 400.0
POLL_SECONDS = 5.0
IDLE_SECONDS, WARM_UP_SECONDS, POLLING_SECONDS = 10.0, 10.0, 25.0
LAG_EVERY_SECONDS = 0.02
STORMS = 3


@dataclass
class Rig:
    cluster: Cluster
    loads: list[Load]
    agents: dict[Cell, AgentStandIn]
    seen: Seen
    session: aiohttp.ClientSession
    base: str

    def url(self, job_name: str) -> str:
        return f"{self.base}/{job_name}"


@dataclass(frozen=True)
class Usage:
    """Of the operator, so far."""

    at: float
    cpu_seconds: float
    written: Counter[str]  # by kind
    flips: int

    @property
    def writes(self) -> int:
        return self.written.total()

    @classmethod
    async def of(cls, operator: Operator, session: aiohttp.ClientSession) -> Usage:
        fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        async with session.get(f"http://127.0.0.1:{operator.metrics_port}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        written = Counter[str]()
        for line in lines:
            if line.startswith("tidemill_operator_api_calls_total") and 'verb="GET"' not in line and 'kind="Lease"' not in line:
                written[line.partition('kind="')[2].partition('"')[0]] += int(float(line.rpartition(" ")[2]))
        flips = sum(float(li.rpartition(" ")[2]) for li in lines if li.startswith("tidemill_operator_flips_total"))
        return cls(time.monotonic(), cpu, written, int(flips))


def peak_mebibytes(operator: Operator) -> float:
    lines = Path(f"/proc/{operator.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


@asynccontextmanager
async def rig(server: ApiServer, folder: Path, jobs: int, cells: int) -> AsyncIterator[Rig]:
    seen, each = Seen(), [cells // jobs + (number < cells % jobs) for number in range(jobs)]
    app = web.Application()
    loads = [Load(f"job-{number:03}", [f"cell-{n}" for n in range(count)], seen) for number, count in enumerate(each)]
    agents: dict[Cell, AgentStandIn] = {}
    connector = aiohttp.TCPConnector(limit=0)
    async with server.client() as client, aiohttp.ClientSession(connector=connector) as session:
        for load in loads:
            for cell in load.cells:
                agents[load.name, cell] = AgentStandIn(cell, ConductorClient("", SECRET, session))
                app.add_subapp(f"/{load.name}/{cell}", agents[load.name, cell].routes())
            app.add_subapp(f"/{load.name}", load.routes())
        runner = await serve(app, "127.0.0.1", 0)
        made = Rig(Cluster(server, NAMESPACE, folder, client), loads, agents, seen, session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        for (name, cell), agent in agents.items():
            agent.url = f"{made.url(name)}/{cell}"
            agent.conductor = ConductorClient(made.url(name), SECRET, session)
            await agent.conductor.report_cell(agent.state())
        token = await asyncio.to_thread(_install, made)
        watching = asyncio.create_task(watch(server, token, seen))
        try:
            yield made
        finally:
            watching.cancel()
            for operator in made.cluster.operators:
                operator.kill()
                await operator.process.wait()
            await runner.cleanup()


def _install(rig: Rig) -> str:
    """Namespaces and the operator's rights; answers a token with which GPUCells may be watched."""
    cluster = rig.cluster
    for name in (NAMESPACE, BARE):
        cluster.server.make_namespace(name)
    cluster.server.kubectl("apply", "--filename=-", input=cluster.rights())
    return cluster.server.token_for(cluster.account, NAMESPACE)


async def watch(server: ApiServer, token: str, seen: Seen) -> None:
    """Every role as anybody would see it being written."""
    trust = ssl.create_default_context(cafile=str(server.control_plane.authority.certificate))
    url = server.url + RESOURCES["GPUCell"].path(NAMESPACE)
    limits = aiohttp.ClientTimeout(total=None)
    query, headers = {"watch": "1", "timeoutSeconds": "3600"}, {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust), timeout=limits, read_bufsize=2**20) as session,
        session.get(url, params=query, headers=headers) as answer,
    ):
        answer.raise_for_status()
        async for line in answer.content:
            event = json.loads(line)
            spec, name = event["object"]["spec"], event["object"]["metadata"]["name"]
            seen.written((spec["job"], name.removeprefix(f"{spec['job']}-")), spec["role"], spec["epoch"])
    raise RuntimeError("the watch of GPUCells ended; what was measured is worth nothing")


async def start_operator(rig: Rig) -> Operator:
    """With a patient lease: on a machine as busy as this one the usual times would end in a restart instead of a figure."""
    return await rig.cluster.start(lease={"name": rig.cluster.account, "durationSeconds": 60, "renewSeconds": 45, "retrySeconds": 2})


async def set_up(rig: Rig, operator: Operator) -> None:
    """Every job with all its objects."""
    for load in rig.loads:
        await rig.cluster.submit(job(load.name, cells=len(load.cells)), rig.url(load.name))
    deadline = time.monotonic() + SET_UP_SECONDS
    while len(rig.seen.cells) < len(rig.agents) or any(not load.term for load in rig.loads):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(rig.seen.cells)} of {len(rig.agents)} cells after {SET_UP_SECONDS:g} s:\n{rig.cluster.last_words()}")
        await asyncio.sleep(1.0)
    await quiet(rig, operator)


async def quiet(rig: Rig, operator: Operator, seconds: float = 3.0) -> None:
    """Until the operator writes nothing any more."""
    before = await Usage.of(operator, rig.session)
    while True:
        await asyncio.sleep(seconds)
        now = await Usage.of(operator, rig.session)
        if now.writes - before.writes < 3 and now.cpu_seconds - before.cpu_seconds < 0.8 * seconds:
            return
        before = now


@asynccontextmanager
async def ebbing(rig: Rig, burst_seconds: float) -> AsyncIterator[None]:
    """All jobs at once, each at another point of its burst."""
    tasks = [asyncio.create_task(load.ebb(burst_seconds, number / len(rig.loads), random.Random(number))) for number, load in enumerate(rig.loads)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def lags(found: list[float]) -> AsyncIterator[None]:
    """How late this process itself is, which plays all agents and is the clock: on a machine that is too busy for it no figure is the operator's."""

    async def measure() -> None:
        while True:
            due = time.monotonic() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            found.append(time.monotonic() - due)

    measuring = asyncio.create_task(measure())
    try:
        yield
    finally:
        measuring.cancel()


async def steady(rig: Rig, operator: Operator, seconds: float, burst_seconds: float) -> None:
    late: list[float] = []
    async with ebbing(rig, burst_seconds):
        await asyncio.sleep(WARM_UP_SECONDS)
        rig.seen.forget()
        before = await Usage.of(operator, rig.session)
        async with lags(late):
            await asyncio.sleep(seconds)
        after = await Usage.of(operator, rig.session)
    took, flips = after.at - before.at, max(1, after.flips - before.flips)
    print(f"\nSteady: a burst takes {burst_seconds:g} s in each of {len(rig.loads)} jobs; {flips / took:.1f} flips/s and as often 2 readings/s a job")
    show("crossing -> role written", rig.seen.crossings, "goal: p99 under 1 s")
    show("conductor's return -> role mirrored", rig.seen.returns)
    show("this process itself is late", late, "what is above counts only where this is small")
    written = after.written - before.written
    print(f"  {'API writes a flip':40} {written.total() / flips:8.1f}      goal: under 10 (without the lease); {by_kind(written)}")
    print(f"  {'operator CPU':40} {(after.cpu_seconds - before.cpu_seconds) / took:8.2f} cores")
    print(f"  {'not written when the load ended':40} {len([at for at in rig.seen.due.values() if at < after.at - 1.0]):8}")


async def storms(rig: Rig) -> None:
    """All jobs cross in the same moment."""
    crossings: list[float] = []
    late: list[float] = []
    for _ in range(STORMS):
        await asyncio.gather(*(load.fill() for load in rig.loads))
        await asyncio.sleep(8.0)
        rig.seen.forget()
        async with lags(late):
            await asyncio.gather(*(load.finish(CAPACITY) for load in rig.loads))
            await _written(rig, len(rig.loads))
        crossings += rig.seen.crossings
    print(f"\nStorm: one crossing in each of {len(rig.loads)} jobs in the same moment, {STORMS} times")
    show("crossing -> role written", crossings)
    show("this process itself is late", late)


async def _written(rig: Rig, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(rig.seen.crossings) < count and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


async def api_server_alone(rig: Rig, count: int) -> None:
    """The same patch by this process, of cells that no operator serves: one after the other, then as many at once as in a storm."""
    kube = Kube(rig.cluster.client)
    cells = [f"bare-cell-{n}" for n in range(len(rig.loads))]
    for number, name in enumerate(cells):
        spec = {"job": "bare", "ordinal": number, "kind": "Satellite"}
        await kube.create({"apiVersion": "tidemill.dev/v1alpha1", "kind": "GPUCell", "metadata": {"name": name, "namespace": BARE}, "spec": spec})

    async def patch(name: str, epoch: int) -> float:
        started = time.monotonic()
        role = Role.TRAINING if epoch % 2 else Role.ROLLOUT
        await kube.merge("GPUCell", BARE, name, {"spec": {"role": role.value, "epoch": epoch}})
        return time.monotonic() - started

    alone = [await patch(cells[n % len(cells)], 1 + n // len(cells)) for n in range(count)]
    together = await asyncio.gather(*(patch(name, 1000) for name in cells))
    print("\nBaseline: the API server alone, the same patch without any operator's part")
    show("one after the other", alone)
    show(f"{len(cells)} at once", together)


async def restart(rig: Rig, operator: Operator) -> Operator:
    await operator.stop()
    terms = {load.name: load.term for load in rig.loads}
    started = time.monotonic()
    fresh = await start_operator(rig)
    leads = 0.0
    while any(load.term == terms[load.name] for load in rig.loads):
        if not leads and await _is_leading(rig, fresh):
            leads = time.monotonic() - started
        if time.monotonic() - started > 60:
            raise TimeoutError(f"not all jobs are followed after 60 s:\n{rig.cluster.last_words()}")
        await asyncio.sleep(0.05)
    followed = time.monotonic() - started
    await quiet(rig, fresh)
    usage = await Usage.of(fresh, rig.session)
    print("\nStart-up with everything existing (from the start of the process; the lease was given back)")
    print(f"  {'caches filled, leading':40} {leads or followed:8.2f} s")
    print(f"  {'controller of every job':40} {followed:8.2f} s")
    print(f"  {'API writes until all is quiet':40} {usage.writes:8}      {by_kind(usage.written)}")
    print(f"  {'CPU until all is quiet':40} {usage.cpu_seconds:8.2f} s")
    return fresh


async def _is_leading(rig: Rig, operator: Operator) -> bool:
    with suppress(aiohttp.ClientError):
        async with rig.session.get(f"http://127.0.0.1:{operator.health_port}/readyz") as answer:
            return "leading" in await answer.text()
    return False


async def polling(rig: Rig, burst_seconds: float) -> None:
    """What a controller without watches and long polls would need: it looks every five seconds."""
    rig.seen.forget()
    pollers = [asyncio.create_task(_poll(rig, load, number / len(rig.loads))) for number, load in enumerate(rig.loads)]
    async with ebbing(rig, burst_seconds):
        await asyncio.sleep(POLLING_SECONDS)
    for task in pollers:
        task.cancel()
    print(f"\nBaseline: a controller in this process that looks at each job every {POLL_SECONDS:g} s, under the steady load, no operator running")
    show("crossing -> role written", rig.seen.crossings)


async def _poll(rig: Rig, load: Load, offset: float) -> None:
    conductor, kube = ConductorClient(rig.url(load.name), SECRET, rig.session), Kube(rig.cluster.client)
    term = (await conductor.authority(Authority("tidemill-operator", 0))).term
    await asyncio.sleep(offset * POLL_SECONDS)
    while True:
        await conductor.authority(Authority("tidemill-operator", term))
        reading = await conductor.tide(-1, wait_seconds=0.0)
        for cell in to_train(Mode.ELASTIC, for_rules(reading)):
            with suppress(Refused, KubeError):
                grant = await conductor.request_grant(GrantRequest(cell, Role.TRAINING, term, reading.sequence))
                await kube.merge("GPUCell", NAMESPACE, f"{load.name}-{cell}", {"spec": {"role": grant.role.value, "epoch": grant.epoch}})
                agent = CellClient(rig.agents[load.name, cell].url, SECRET, rig.session)
                await agent.put_role(RoleOrder(grant.role, grant.epoch, grant.destinations))
        await asyncio.sleep(POLL_SECONDS)


def by_kind(written: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in written.most_common())


def show(what: str, seconds: Iterable[float], remark: str = "") -> None:
    found = sorted(seconds)
    if not found:
        print(f"  {what:40} nothing was measured")
        return
    p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
    print(f"  {what:40} p50 {statistics.median(found):6.3f} s  p99 {p99:6.3f} s  most {found[-1]:6.3f} s  of {len(found):4}  {remark}")


async def measure(server: ApiServer, folder: Path, options: argparse.Namespace) -> None:
    async with rig(server, folder, options.jobs, options.cells) as made:
        started = time.monotonic()
        operator = await start_operator(made)
        await set_up(made, operator)
        usage = await Usage.of(operator, made.session)
        print(f"Set-up: {options.jobs} jobs with {options.cells} cells from nothing in {time.monotonic() - started:.0f} s", end="")
        print(f": {usage.writes} writes, {usage.cpu_seconds:.1f} s of operator CPU, peak {peak_mebibytes(operator):.0f} MiB")
        await asyncio.sleep(IDLE_SECONDS)
        idle = await Usage.of(operator, made.session)
        print(f"Idle: {(idle.cpu_seconds - usage.cpu_seconds) / (idle.at - usage.at):.3f} cores")
        await api_server_alone(made, 200)
        await steady(made, operator, options.seconds, options.burst_seconds)
        await storms(made)
        print(f"\nPeak memory of the operator (RSS): {peak_mebibytes(operator):.0f} MiB, goal: under 300 MB")
        fresh = await restart(made, operator)
        print(f"  {'peak memory':40} {peak_mebibytes(fresh):8.0f} MiB")
        await fresh.stop()
        await polling(made, options.burst_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--cells", type=int, default=1000, help="of all jobs together")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the steady load is measured")
    parser.add_argument("--burst-seconds", type=float, default=240.0, help="of each job, steady load; most cells flip twice in one")
    options = parser.parse_args()
    if options.cells < 2 * options.jobs:
        parser.error("an elastic job needs two cells: raise --cells or lower --jobs")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{cores} cores shared with the API server, etcd, the stand-ins and whatever else runs here (load {load:.1f} at the start)\n")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidemill-scale-") as folder, api_server() as server:
        asyncio.run(measure(server, Path(folder), options))
    print(f"\nin all {time.monotonic() - started:.0f} s; load {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
