"""Start the conductor of a job on this machine, and stop it."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from tidemill.api import InvalidManifest, RLJob, load_rljob
from tidemill.telemetry import logs
from tidemill.wire.gateway import Gateways
from tidemill.wire.http import serve
from tidemill.wire.shards import addresses
from tidemill.wire.trust import NoCredential, from_environment
from tidemill_rollout.conductor.conductor import Conductor, Place
from tidemill_rollout.conductor.job import OtherJob
from tidemill_rollout.conductor.local import LocalSandboxes
from tidemill_rollout.conductor.sandboxes import Remote, Sandboxes
from tidemill_rollout.conductor.server import routes
from tidemill_rollout.conductor.settings import settings_of
from tidemill_rollout.conductor.store import Store
from tidemill_rollout.follow import follow
from tidemill_rollout.harness.presets import HarnessError
from tidemill_rollout.outside import FOLDER, outlets
from tidemill_rollout.sandbox.execution import LocalExecutions
from tidemill_rollout.sandbox.process import SandboxUnavailable
from tidemill_rollout.tasks.source import Task, TaskError, load_tasks

log = logs.Log(__name__)

LAST_WORD_SECONDS = 1.0
"""For curves and spans of the last events. Ctrl-C promises an end of all processes within 10 s."""


def main() -> int:
    arguments = _arguments()
    logs.start("conductor")
    workdir: Path = arguments.workdir
    try:
        credential = from_environment()
        job = load_rljob(arguments.manifest)
        logs.start("conductor", job=job.metadata.name)
        tasks, held_out = _tasks(job, arguments.manifest.parent)
        sandboxes = _sandboxes(job, {task.name: task for task in (*tasks, *held_out)}, arguments)
        (workdir / "trajectories").mkdir(parents=True, exist_ok=True)
        place = Place(workdir, tuple(t.name for t in tasks), tuple(t.name for t in held_out), arguments.cores_shared, credential)
        with _alone_in(workdir):
            return asyncio.run(_serve(job, place, sandboxes, arguments))
    except (NoCredential, InvalidManifest, TaskError, SandboxUnavailable, HarnessError, OSError, sqlite3.Error) as cause:
        log.error("the conductor cannot start", reason=str(cause))
        return 2


@contextmanager
def _alone_in(workdir: Path) -> Iterator[None]:
    """Two conductors on one store would take each other's executions for dead. The lock ends with the process, however that ends."""
    with (workdir / "conductor.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            raise OSError(f"{workdir}: another conductor works in this folder; stop it, or use another folder") from cause
        yield


def _tasks(job: RLJob, base: Path) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """The tasks that are trained, and those that are held out. Raises `TaskError`."""
    spec = job.spec
    tasks = load_tasks(spec.tasks.source, base, spec.tasks.seed, spec.tasks.filter)
    held_out = load_tasks(spec.evaluation.source, base) if spec.evaluation.source else ()
    both = {t.name for t in tasks} & {t.name for t in held_out}
    if both:
        raise TaskError(f"task {min(both)}: is held out and trained; take it out of spec.tasks or spec.evaluation, or rename one")
    return tasks, held_out


def _sandboxes(job: RLJob, tasks: dict[str, Task], arguments: argparse.Namespace) -> Sandboxes:
    """Jails on this machine, or pods. The second is imported only where it is wanted: it needs a Kubernetes client."""
    workdir: Path = arguments.workdir
    if arguments.sandboxes == "pods":
        from tidemill_rollout.conductor.pods import pod_sandboxes

        return pod_sandboxes(job, workdir, tasks, arguments.sandbox_config)
    local = LocalExecutions(job, workdir, workdir / "gateway.sock", arguments.unsafe_sandbox)
    local.check()
    return LocalSandboxes(local, tasks)


async def _serve(job: RLJob, place: Place, sandboxes: Sandboxes, arguments: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = Store(place.workdir / "conductor.db")
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        gateway = Gateways(addresses(arguments.gateway_url), place.credential, session)
        conductor = Conductor(settings_of(job), place, store, sandboxes, gateway, session, tasks)
        try:
            app = routes(conductor, place.credential)
            if isinstance(sandboxes, Remote):
                app.add_routes(await sandboxes.begin(gateway, tasks))
            await conductor.start(retry_failed=arguments.resume)
            runner = await serve(app, arguments.host, arguments.port)
        except (OtherJob, SandboxUnavailable, OSError) as cause:
            log.error("the conductor cannot start", reason=str(cause), port=arguments.port)
            await conductor.stop()
            return 2
        log.info("conductor serves", port=arguments.port)
        outside = tasks.create_task(follow(conductor.events, outlets(job, place.workdir, os.environ), place.workdir / FOLDER, stop))
        await stop.wait()
        await conductor.stop()
        await asyncio.wait((outside,), timeout=LAST_WORD_SECONDS)
        outside.cancel()
        await runner.cleanup()
    store.close()
    log.info("conductor stopped")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidemill_rollout.conductor", description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="the job")
    parser.add_argument("--workdir", type=Path, required=True, help="where conductor.db, metrics.jsonl, trajectories/ and executions/ lie")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 in a pod (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gateway-url", required=True, help="of several gateways: all of them, with commas between")
    parser.add_argument("--resume", action="store_true", help="try a job again that has failed; without it a stopped job goes on too")
    parser.add_argument("--cores-shared", action="store_true", help="cells share CPU cores: the report says that times mean nothing")
    parser.add_argument("--unsafe-sandbox", action="store_true", help="run harnesses without a jail")
    parser.add_argument("--sandboxes", choices=("local", "pods"), default="local", help="where harnesses run (default: %(default)s)")
    parser.add_argument("--sandbox-config", type=Path, help="with --sandboxes pods: the file in which the operator says what a sandbox pod is")
    given = parser.parse_args()
    if given.sandboxes == "pods" and given.sandbox_config is None:
        parser.error("--sandbox-config is missing; --sandboxes pods needs the file that the operator writes")
    return given
