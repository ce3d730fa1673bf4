"""The trainer's process: its arguments, its threads, its end."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
import uuid
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import torch
from transformers.utils import logging as transformers_logging

from tidemill.api import InvalidManifest, RLJob, load_rljob
from tidemill.telemetry import logs
from tidemill.transfer import transport
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.http import WireError, serve
from tidemill.wire.trust import Credential, NoCredential, from_environment
from tidemill_trainer.core import Core, Settings
from tidemill_trainer.loss import Objective
from tidemill_trainer.model import Model, choose_device
from tidemill_trainer.satellite import Satellite
from tidemill_trainer.server import Door
from tidemill_trainer.step import forward_backward
from tidemill_trainer.worker import Identity, Worker

CORE_CELL = "cell-0"
STOP_SECONDS = 2.0

log = logs.Log(__name__)


@dataclass(frozen=True, slots=True)
class Arguments:
    job: RLJob
    workdir: Path
    cell: str
    host: str
    port: int
    advertise: str  # address under which other cells reach this one
    conductor_url: str
    model: Path
    credential: Credential


def main() -> None:
    arguments = _arguments()
    logs.start("trainer", job=arguments.job.metadata.name, cell=arguments.cell)
    transformers_logging.disable_progress_bar()
    # The cores this process may use are its cell's. One thread where sums must be the same bits in all cells, however many cores each has.
    torch.set_num_threads(1 if arguments.job.spec.algorithm.deterministic else int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    code = 0
    try:
        asyncio.new_event_loop().run_until_complete(_run(arguments))  # not asyncio.run: that waits for threads that may hang in a read
    except* OSError as group:
        log.error("trainer cannot listen or lost its files", causes=[str(cause) for cause in group.exceptions])
        code = 1
    except* Exception:
        log.exception("trainer ends")
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a forward-backward pass under way cannot be cancelled, and nothing of it is wanted


async def _run(arguments: Arguments) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    door = Door(arguments.job.metadata.name, arguments.cell, arguments.credential)
    runner = await serve(door.app, arguments.host, arguments.port)
    torch_thread = ThreadPoolExecutor(1, "torch")  # one thread: OpenMP keeps a pool of its own for each thread that computes
    async with aiohttp.ClientSession() as session:
        working = asyncio.create_task(_work(arguments, door, session, torch_thread))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        working.cancel()
        await asyncio.wait((working,), timeout=STOP_SECONDS)
    await runner.cleanup()


async def _work(arguments: Arguments, door: Door, session: aiohttp.ClientSession, torch_thread: Executor) -> None:
    job = arguments.job.spec
    who = Identity(arguments.cell, uuid.uuid4().hex)
    conductor = ConductorClient(arguments.conductor_url, arguments.credential, session)
    way = transport(arguments.host, arguments.advertise)
    make = Model.load if arguments.cell == CORE_CELL else Model.empty
    model = await asyncio.get_running_loop().run_in_executor(torch_thread, make, arguments.model, choose_device())
    home: Core | Satellite
    if arguments.cell == CORE_CELL:
        home = Core(who, _settings(arguments), model, conductor, way, torch_thread)
        await home.start()
    else:
        home = Satellite(who, model, way, arguments.credential, session, torch_thread)
    objective = Objective(job.algorithm.name, job.algorithm.token_weight_cap, job.algorithm.sequence_clip)
    compute = partial(forward_backward, model, objective=objective, temperature=job.sampling.temperature or 1.0)
    worker = Worker(who, conductor, home, compute, model.clear_gradients, torch_thread, job.algorithm.deterministic)
    door.open(worker, home)
    gc.freeze()  # the libraries' objects stay: without this each leave spends 0.3 s on looking through them for garbage
    log.info(
        "trainer is ready", incarnation=who.incarnation, threads=torch.get_num_threads(), device=str(model.device), parameters=model.layout.numel
    )
    try:
        await worker.run()
    finally:
        try:
            async with asyncio.timeout(STOP_SECONDS / 2):
                await worker.give_back_leases()
        except (WireError, TimeoutError) as trouble:
            log.warning("leases not returned, they will expire", reason=str(trouble))
        home.close()
        way.close()


def _settings(arguments: Arguments) -> Settings:
    job = arguments.job.spec
    return Settings(
        model_folder=arguments.model,
        checkpoints=arguments.workdir / "checkpoints",
        store=arguments.workdir / "conductor.db",
        published_dtype=getattr(torch, job.model.dtype),
        learning_rate=job.algorithm.learning_rate,
        max_grad_norm=job.algorithm.max_grad_norm,
        keep=job.checkpoints.keep,
        deterministic=job.algorithm.deterministic,
    )


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        prog="python -m tidemill_trainer", description="The trainer of one cell. Who it is and whom it believes is taken from the environment."
    )
    parser.add_argument("--manifest", type=Path, required=True, help="the RLJob")
    parser.add_argument("--workdir", type=Path, required=True, help="the job's work folder: checkpoints are written there")
    parser.add_argument("--cell", required=True, help=f"name of the cell; {CORE_CELL} is the core")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--advertise", default="", help="address under which other cells reach this one (default: that of --host)")
    parser.add_argument("--conductor-url", required=True)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the initial model")
    given = parser.parse_args()
    try:
        credential = from_environment()
    except NoCredential as cause:
        parser.error(str(cause))
    if not (given.model / "config.json").is_file():
        parser.error(f"{given.model} is not a Hugging Face folder: it has no config.json")
    try:
        job = load_rljob(given.manifest)
    except (InvalidManifest, OSError) as cause:
        parser.error(f"{given.manifest}: {cause}")
    return Arguments(job, given.workdir, given.cell, given.host, given.port, given.advertise, given.conductor_url, given.model, credential)
