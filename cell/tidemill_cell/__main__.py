"""`python -m tidemill_cell`: the agent of one cell."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tidemill.api.loading import InvalidManifest, load_rljob
from tidemill.api.rljob import KvOnPublish, RLJob
from tidemill.telemetry import logs
from tidemill.wire.cell import CellClient, CellKind
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.gateway import Gateways
from tidemill.wire.http import serve
from tidemill.wire.shards import addresses
from tidemill.wire.trainer import TrainerClient
from tidemill.wire.trust import Credential, NoCredential, from_environment
from tidemill_cell import commands, devices
from tidemill_cell.address import EVERYWHERE, LOOPBACK, Address
from tidemill_cell.agent import Agent
from tidemill_cell.children import Child
from tidemill_cell.follower import Follower, Place
from tidemill_cell.follower import routes as follower_routes
from tidemill_cell.gpu.export import watch
from tidemill_cell.identity import Identity, parse_name
from tidemill_cell.metrics import registry_of, registry_of_follower
from tidemill_cell.phases import Phases
from tidemill_cell.process_group import adopt_orphans
from tidemill_cell.proxy import Proxy
from tidemill_cell.ranks import Ranks
from tidemill_cell.server import routes

POD_GRACE_SECONDS = 45.0
"""Of the 60 that a pod has by default; the children need some of them to end."""

_log = logs.Log(__name__)


def main() -> int:
    given = _arguments()
    logs.start("cell", cell=given.cell)
    try:
        credential = from_environment()
        job = load_rljob(given.manifest)
        logs.start("cell", job=job.metadata.name, cell=given.cell)
    except (NoCredential, InvalidManifest) as problem:
        _log.error(str(problem))
        return 2
    adopt_orphans()
    return asyncio.run(_run(given, job, credential))


async def _run(given: argparse.Namespace, job: RLJob, caller: Credential) -> int:
    """Live until SIGTERM or SIGINT; then hand over within the grace period, and end the children. A second signal ends it at once. The exit code."""
    stop, now = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, lambda: now.set() if stop.is_set() else stop.set())
    # The proxy holds a connection for every call in flight, however many executions there are.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        mine, app, live = _follower(given, job, caller, session) if given.rank else _leader(given, job, caller, session)
        try:
            runner = await serve(app, given.host, given.port, cancel_when_caller_leaves=True)
        except OSError as problem:
            _log.error(f"agent port {given.port} cannot be used ({problem.strerror}); give another --port")
            return 2
        life, stopping = asyncio.ensure_future(live()), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((life, stopping), return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()  # a task of the agent died, and the process with it
            if given.grace_seconds > 0:
                await _hand_over(mine, life, now, given.grace_seconds)
        finally:
            life.cancel()
            stopping.cancel()
            await asyncio.gather(asyncio.wait((life,)), runner.cleanup())
    return 0


async def _hand_over(agent: Agent | Follower, life: asyncio.Future[None], now: asyncio.Event, grace_seconds: float) -> None:
    parts = (asyncio.ensure_future(agent.leave()), asyncio.ensure_future(now.wait()))
    done, _ = await asyncio.wait((life, *parts), timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
    for part in parts:
        part.cancel()
    if parts[0] in done:
        _log.info("everything is handed over")
    else:
        _log.warning("ends before everything is handed over; what is in flight is done again elsewhere", grace_seconds=grace_seconds)


def _leader(
    given: argparse.Namespace, job: RLJob, caller: Credential, session: aiohttp.ClientSession
) -> tuple[Agent, web.Application, Callable[[], Coroutine[None, None, None]]]:
    """The agent of a cell, on its first node or its only one."""
    kind, ordinal = parse_name(given.cell)
    mine, trainers = Address(given.host, given.port, given.advertise), Address(given.host, given.trainer_port, given.trainer_advertise)
    me = Identity(given.cell, kind, ordinal, mine.url, job.spec.cells.capacity, trainers.advertised, job.metadata.name)
    share = devices.Devices(given.cores, given.gpus, given.threads)
    engine_url = f"http://{LOOPBACK}:{given.engine_port}"
    engine = _engine(given, job, caller, session)
    trainer, trainer_client = None, None
    if kind is not CellKind.STANDALONE:
        program = commands.trainer(me.cell, trainers, given.manifest, given.conductor_url, given.model, given.workdir, share, os.environ)
        trainer, trainer_client = Child(program, session, caller), TrainerClient(trainers.local_url, caller, session)
    conductor = ConductorClient(given.conductor_url, caller, session)
    agent = Agent(me, engine, trainer, trainer_client, conductor, ranks=Ranks(me.cell, given.ranks))
    proxy = Proxy(engine_url, caller, session, agent.refusal)
    agent.live_calls = lambda: proxy.live_calls
    proxy.on_change = agent.account
    phases = Phases(
        me,
        Gateways(addresses(given.gateway_url), caller, session),
        EngineControl(engine_url, caller, session),
        trainer_client,
        lambda url: TrainerClient(url, caller, session),
        proxy,
        recompute_kv=job.spec.rollout.kv_on_publish is KvOnPublish.RECOMPUTE,
        ledger=agent.ledger,
    )
    registry = registry_of(agent, proxy)
    watch(registry, given.gpus)
    return agent, routes(agent, proxy, registry, caller), lambda: agent.run(phases)


def _follower(
    given: argparse.Namespace, job: RLJob, caller: Credential, session: aiohttp.ClientSession
) -> tuple[Follower, web.Application, Callable[[], Coroutine[None, None, None]]]:
    """The agent of another node of a cell: its part of the engine, and nothing else. Trainers over several nodes do not exist yet."""
    place = Place(given.cell, given.rank, Address(given.host, given.port, given.advertise).url)
    children = (_engine(given, job, caller, session),)
    follower = Follower(place, children, CellClient(given.leader, caller, session))
    registry = registry_of_follower(job.metadata.name, given.cell, given.rank, children)
    watch(registry, given.gpus)
    return follower, follower_routes(follower, registry, caller), follower.run


def _engine(given: argparse.Namespace, job: RLJob, caller: Credential, session: aiohttp.ClientSession) -> Child:
    share = devices.Devices(given.cores, given.gpus, given.threads)
    own = Address(given.host, given.port, given.advertise).reached_as
    span = commands.Span(given.rank, given.ranks, urlsplit(given.leader).hostname or own)
    return Child(commands.engine(job, given.cell, given.engine_port, given.model, given.workdir, share, os.environ, span), session, caller)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tidemill_cell", description="The agent of one cell: its HTTP API, its engine and its trainer.")
    parser.add_argument("--manifest", type=Path, required=True, help="the RLJob")
    parser.add_argument("--workdir", type=Path, required=True, help="work folder of the job; logs of the children go to its logs/")
    parser.add_argument("--cell", required=True, help="cell-0 (the core), cell-1, ..., standalone-0, ...")
    parser.add_argument("--host", default=LOOPBACK, help="address that agent and trainer listen on; 0.0.0.0 in a pod (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--advertise", type=_url, default="", help="URL under which others reach the agent (default: --host and --port)")
    parser.add_argument("--engine-port", type=int, required=True, help="on the loopback interface")
    parser.add_argument("--trainer-port", type=int, default=0, help="not used by a standalone cell")
    parser.add_argument("--trainer-advertise", type=_url, default="", help="URL under which other cells reach the trainer")
    parser.add_argument(
        "--grace-seconds",
        type=float,
        help=f"time to hand over calls, gradients and leases after SIGTERM (default: {POD_GRACE_SECONDS:g}, none on the loopback interface)",
    )
    parser.add_argument("--conductor-url", required=True)
    parser.add_argument("--gateway-url", required=True, help="of several gateways: all of them, with commas between")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the initial weights")
    parser.add_argument("--rank", type=int, default=0, help="which node of its cell this is; rank 0 owns role and epoch (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="nodes of the cell (default: %(default)s)")
    parser.add_argument("--leader", type=_url, default="", help="URL of the agent of rank 0, for all others")
    parser.add_argument("--cores", type=devices.cores, default=(), help="cores of the children, e.g. 0,1 (default: any)")
    parser.add_argument("--threads", type=int, default=0, help="threads of one matrix product (default: one a core)")
    parser.add_argument("--gpus", type=devices.gpus, default=(), help="GPUs of the children, e.g. 0,1 (default: none)")
    given = parser.parse_args()
    try:
        kind, _ = parse_name(given.cell)
    except ValueError as problem:
        parser.error(str(problem))
    if kind is not CellKind.STANDALONE and not given.trainer_port:
        parser.error(f"--trainer-port is missing; only standalone cells have no trainer, and {given.cell} is none")
    if not 0 <= given.rank < given.ranks or bool(given.rank) != bool(given.leader):
        parser.error(f"--rank {given.rank} --ranks {given.ranks} do not fit: ranks count from 0, and all but rank 0 need --leader")
    if given.grace_seconds is None:
        given.grace_seconds = 0.0 if given.host == LOOPBACK else POD_GRACE_SECONDS
    if given.host in EVERYWHERE and not (given.advertise and (given.trainer_advertise or kind is CellKind.STANDALONE)):
        parser.error(
            f"--host {given.host} is an address that nobody can call; say with --advertise and --trainer-advertise how others reach this cell"
        )
    return given


def _url(text: str) -> str:
    if text and (not text.startswith("http://") or not urlsplit(text).hostname):
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as http://10.0.0.7:7002")
    return text.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
