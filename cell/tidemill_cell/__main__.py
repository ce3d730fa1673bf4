"""`python -m tidemill_cell`: the agent of one cell."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp

from tidemill.api.loading import InvalidManifest, load_rljob
from tidemill.api.rljob import KvOnPublish, RLJob
from tidemill.telemetry import logs
from tidemill.wire.cell import CellKind
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.gateway import GatewayClient
from tidemill.wire.http import TOKEN_VARIABLE, serve
from tidemill.wire.trainer import TrainerClient
from tidemill_cell import commands, devices
from tidemill_cell.agent import Agent
from tidemill_cell.children import Child
from tidemill_cell.identity import Identity, parse_name
from tidemill_cell.phases import Phases
from tidemill_cell.process_group import adopt_orphans
from tidemill_cell.proxy import Proxy
from tidemill_cell.server import routes

HOST = "127.0.0.1"
_log = logs.Log(__name__)


def main() -> int:
    given = _arguments()
    logs.start("cell", cell=given.cell)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        _log.error(f"{TOKEN_VARIABLE} is not set; the agent takes the job's token from it")
        return 2
    try:
        job = load_rljob(given.manifest)
    except InvalidManifest as problem:
        _log.error(str(problem))
        return 2
    adopt_orphans()
    return asyncio.run(_run(given, job, token))


async def _run(given: argparse.Namespace, job: RLJob, token: str) -> int:
    """Live until SIGTERM or SIGINT; then end the children. The exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # The proxy holds a connection for every call in flight, however many executions there are.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        agent, phases, proxy = _assemble(given, job, token, session)
        try:
            runner = await serve(routes(agent, proxy, token), HOST, given.port, cancel_when_caller_leaves=True)
        except OSError as problem:
            _log.error(f"agent port {given.port} cannot be used ({problem.strerror}); give another --port")
            return 2
        life, stopping = asyncio.ensure_future(agent.run(phases)), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((life, stopping), return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()  # a task of the agent died, and the process with it
        finally:
            life.cancel()
            stopping.cancel()
            await asyncio.gather(asyncio.wait((life,)), runner.cleanup())
    return 0


def _assemble(given: argparse.Namespace, job: RLJob, token: str, session: aiohttp.ClientSession) -> tuple[Agent, Phases, Proxy]:
    kind, ordinal = parse_name(given.cell)
    me = Identity(given.cell, kind, ordinal, f"http://{HOST}:{given.port}", job.spec.cells.capacity)
    share = devices.Devices(given.cores, given.gpus, given.threads)
    engine_url, trainer_url = f"http://{HOST}:{given.engine_port}", f"http://{HOST}:{given.trainer_port}"
    engine = Child(commands.engine(job, me.cell, given.engine_port, given.model, given.workdir, share, os.environ), session, token)
    trainer, trainer_client = None, None
    if kind is not CellKind.STANDALONE:
        program = commands.trainer(me.cell, given.trainer_port, given.manifest, given.conductor_url, given.model, given.workdir, share, os.environ)
        trainer, trainer_client = Child(program, session, token), TrainerClient(trainer_url, token, session)
    agent = Agent(me, engine, trainer, trainer_client, ConductorClient(given.conductor_url, token, session))
    proxy = Proxy(engine_url, token, session, agent.refusal)
    phases = Phases(
        me,
        GatewayClient(given.gateway_url, token, session),
        EngineControl(engine_url, token, session),
        trainer_client,
        lambda url: TrainerClient(url, token, session),
        proxy,
        recompute_kv=job.spec.rollout.kv_on_publish is KvOnPublish.RECOMPUTE,
    )
    return agent, phases, proxy


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tidemill_cell", description="The agent of one cell: its HTTP API, its engine and its trainer.")
    parser.add_argument("--manifest", type=Path, required=True, help="the RLJob")
    parser.add_argument("--workdir", type=Path, required=True, help="work folder of the job; logs of the children go to its logs/")
    parser.add_argument("--cell", required=True, help="cell-0 (the core), cell-1, ..., standalone-0, ...")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine-port", type=int, required=True)
    parser.add_argument("--trainer-port", type=int, default=0, help="not used by a standalone cell")
    parser.add_argument("--conductor-url", required=True)
    parser.add_argument("--gateway-url", required=True)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the initial weights")
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
    return given


if __name__ == "__main__":
    sys.exit(main())
