"""Run one RLJob on this machine, from manifest to trained model: the shell around conductor, gateway and cells."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from dataclasses import dataclass

import aiohttp

from tidemill.api import RLJob
from tidemill.local import scraping
from tidemill.local.commands import Layout, commands
from tidemill.local.cores import gpus_of, share_cores, share_gpus
from tidemill.local.memory import available_memory, check_memory
from tidemill.local.model import footprint, prepare_model
from tidemill.local.ports import choose_ports
from tidemill.local.processes import Processes, ProcessFailed, ProcessRefused
from tidemill.local.programs import install
from tidemill.local.screen import view_of
from tidemill.local.summary import Summary, summarize
from tidemill.local.workdir import WorkFolder
from tidemill.report.live import Screen
from tidemill.report.page import write_report
from tidemill.telemetry.events import readable_events
from tidemill.wire.conductor import ConductorClient, JobPhase, Tide
from tidemill.wire.gateway import Gateways, GatewayState
from tidemill.wire.http import WireError
from tidemill.wire.trust import TOKEN_VARIABLE

TEND_SECONDS = 0.25
LAST_WORD_SECONDS = 1.0
"""For the gateway's counters. Ctrl-C promises an end of all processes within 10 s."""


@dataclass(frozen=True, slots=True)
class Options:
    resume: bool = False
    ports: int | None = None  # first of the ports to use; None: any free ones
    unsafe_sandbox: bool = False


def run_job(job: RLJob, folder: WorkFolder, options: Options, screen: Screen) -> Summary:
    """Run until the job has ended, a process has died too often, Ctrl-C, or SIGTERM. Afterwards no process is left, and the report is written.

    Raises:
        ProgramUnavailable, ModelUnavailable, NotEnoughMemory, PortTaken: before anything is started.
        ProcessRefused: at once after that; nothing of the job has begun, or gone on.
    """
    install(job.spec.harness, screen.say)
    screen.say(f"preparing model {job.spec.model.source}")
    model = prepare_model(job, folder.logs / "model.log")
    check_memory(footprint(job, model), available_memory())
    cells = job.spec.cells.count + job.spec.cells.standalone.replicas
    layout = Layout(
        folder=folder.path,
        model=model,
        ports=choose_ports(cells, options.ports, job.spec.gateway.replicas),
        cores=share_cores(cells, tuple(sorted(os.sched_getaffinity(0)))),
        gpus=share_gpus(cells, gpus_of()),
        token=os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24),
        resume=options.resume,
        unsafe_sandbox=options.unsafe_sandbox,
    )
    processes = Processes()
    gateway: GatewayState | None = None
    trouble = ""
    scraping.announce(folder.path, scraping.targets(job, layout))
    try:
        gateway = asyncio.run(_run(job, layout, processes, screen))
    except ProcessRefused:
        raise
    except ProcessFailed as cause:
        trouble = str(cause)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it has been heard; a second Ctrl-C must not leave the rest half stopped
        screen.say("stopping")
        processes.ask_to_stop()
        try:
            summary = _finish(folder, gateway, trouble, screen)  # while they end: on a busy machine the picture takes seconds
        finally:
            processes.await_end()
            scraping.withdraw(folder.path)
    return summary


async def _run(job: RLJob, layout: Layout, processes: Processes, screen: Screen) -> GatewayState | None:
    """Start the processes, tend them and show the tide until the job has ended or a signal says stop. Returns the gateway's last counters."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):  # before the first fork: a KeyboardInterrupt that is raised in what runs around one is lost
        loop.add_signal_handler(number, stop.set)
    for command in commands(job, layout):
        processes.start(command)
    screen.say(f"started {len(processes.running)} processes, logs in {layout.folder / 'logs'}")
    async with aiohttp.ClientSession() as session:
        conductor = ConductorClient(layout.conductor_url, layout.token, session)
        gateway = Gateways(layout.gateway_urls, layout.token, session)
        watching = asyncio.create_task(_show(conductor, screen, stop))
        try:
            while not stop.is_set():
                processes.tend(time.monotonic())
                try:
                    await asyncio.wait_for(stop.wait(), TEND_SECONDS)
                except TimeoutError:
                    continue
        finally:
            watching.cancel()
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                return await gateway.state()
        except (WireError, TimeoutError):
            return None


async def _show(conductor: ConductorClient, screen: Screen, stop: asyncio.Event) -> None:
    seen = -1
    while True:
        try:
            tide: Tide = await conductor.tide(seen, wait_seconds=2.0)
        except WireError:
            await asyncio.sleep(0.5)
            continue
        seen = tide.sequence
        screen.show(view_of(tide))
        if tide.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED):
            stop.set()
            return


def _finish(folder: WorkFolder, gateway: GatewayState | None, trouble: str, screen: Screen) -> Summary:
    """Sum up, write the report, and put the trained model where the user looks for it."""
    events, broken = readable_events(folder.events) if folder.events.exists() else ([], ())  # stopped before there was one
    for line in broken:
        screen.say(line)
    now = time.time()
    summary = summarize(events, gateway, now, trouble)
    newest = max((folder.path / "checkpoints").glob("step-*/model.safetensors"), default=None)
    if summary.phase == JobPhase.SUCCEEDED and newest is not None:
        shutil.copytree(
            newest.parent, folder.path / "model", dirs_exist_ok=True, ignore=shutil.ignore_patterns("optimizer*", "conductor*", "trainer*")
        )
        screen.say(f"trained model: {folder.path / 'model'}")
    if events:
        try:
            write_report(events, now, folder.path)
            screen.say(f"report: {folder.path / 'report.html'}")
        except OSError as cause:  # a full disk must not take the summary too
            screen.say(f"no report: {cause}")
    return summary
