"""Harnesses and evaluators as pods of a cluster. Their files travel through the gateway; the API server is asked to make, watch and remove them.

A pod that runs needs no API server: its end is known by what it brings. While the API server is away nothing is started, and nothing is lost.
Folders as on one machine: W/executions/<id>/<attempt>/ with work.tar (the work and logs), harness.log, evaluation/{output.log,logs/verifier/} and
evaluation.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from aiohttp import web

from tidemill.api.model import amount
from tidemill.api.rljob import RLJob
from tidemill.telemetry.logs import Log
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import GatewayClient, OpenExecution
from tidemill.wire.http import Unreachable, WireError
from tidemill_rollout.conductor.deliveries import Deliveries, Delivery
from tidemill_rollout.conductor.podlives import Crew, Lost
from tidemill_rollout.conductor.sandboxes import EvaluatorCrashed, SandboxBroken
from tidemill_rollout.harness import presets
from tidemill_rollout.sandbox import archive, orders, tree
from tidemill_rollout.sandbox.ending import Over
from tidemill_rollout.sandbox.enter import OUTPUT, RELAY, Order, Report
from tidemill_rollout.sandbox.execution import KEEP_BYTES, Evaluation, HarnessEnd
from tidemill_rollout.sandbox.manifest import START_SECONDS, Errand, Owner, PodSettings, harness_pod, pod_name, selector
from tidemill_rollout.sandbox.mounts import TESTS
from tidemill_rollout.sandbox.pods import NoCluster, Pods, connect
from tidemill_rollout.sandbox.process import Limits, SandboxUnavailable
from tidemill_rollout.sandbox.template import SandboxRefused
from tidemill_rollout.scoring.reward import MAX_BYTES, RewardError, read_reward
from tidemill_rollout.tasks.source import BUILD_FILES, Task

GATEWAY_SECONDS = 180.0
RETRY_SECONDS = 0.5

log = Log(__name__)


def pod_sandboxes(job: RLJob, workdir: Path, tasks: dict[str, Task], config: Path) -> PodSandboxes:
    """As the operator's file says.

    Raises:
        SandboxUnavailable: the file cannot be read, or the job's template would open its sandboxes.
        HarnessError: the manifest's harness cannot be started.
    """
    try:
        settings = msgspec.json.decode(config.read_bytes(), type=PodSettings)
    except (OSError, msgspec.MsgspecError) as cause:
        raise SandboxUnavailable(f"{config}: {cause}; the operator writes this file, see spec.sandbox") from cause
    name, uid = os.environ.get("POD_NAME", ""), os.environ.get("POD_UID", "")
    sandboxes = PodSandboxes(job, workdir, tasks, settings, Owner(name, uid) if name and uid else None)
    sandboxes.check()
    return sandboxes


class PodSandboxes:
    """The conductor's `Sandboxes` on a cluster. `begin` comes before anything else."""

    def __init__(
        self, job: RLJob, workdir: Path, tasks: dict[str, Task], settings: PodSettings, owner: Owner | None = None, pods: Pods | None = None
    ) -> None:
        self.deliveries = Deliveries()
        self._job = job
        self._folder = workdir / "executions"
        self._tasks = tasks
        self._settings = settings
        self._owner = owner
        self._pods = pods  # None: those that this process's surroundings lead to
        self.limits = Limits(memory_bytes=int(amount(settings.resources.memory)))
        self._crew: Crew
        self._gateway: GatewayClient

    async def begin(self, gateway: GatewayClient, tasks: asyncio.TaskGroup) -> list[web.RouteDef]:
        try:
            pods = self._pods or Pods(await connect(), self._settings.namespace, selector(self._settings.job))
        except NoCluster as cause:
            raise SandboxUnavailable(str(cause)) from cause
        self._gateway = gateway
        self._crew = Crew(pods, tasks)
        self._crew.start()
        return self.deliveries.routes()

    @property
    def trouble(self) -> str:
        found = self._crew.trouble if hasattr(self, "_crew") else ""
        remedy = "correct the image, its pull secret or the sandbox's template: it is tried again, and the job goes on by itself"
        return f"{found}; {remedy}" if found else ""

    def check(self) -> None:
        presets.check(self._job, in_image=True)
        try:
            for component in ("sandbox", "evaluator"):
                harness_pod(self._settings, self._owner, Errand(component, "check", 1, "check", "check", "key", 1.0))
        except SandboxRefused as cause:
            raise SandboxUnavailable(str(cause)) from cause

    async def run(self, execution: str, attempt: int, task: str, key: str, deadline_seconds: float) -> HarnessEnd:
        until = time.monotonic() + deadline_seconds
        chosen = self._tasks[task]
        folder = self._attempt(execution, attempt)
        try:
            await asyncio.to_thread(_begin, folder)
            order = await asyncio.to_thread(self._write_harness, folder, execution, key, chosen)
            delivery = _delivery(folder, attempt, order, until)
            errand = Errand("sandbox", execution, attempt, secrets.token_hex(4), execution, key, deadline_seconds, *self._image(chosen))
            with self.deliveries.expect(execution, delivery):
                result = await self._crew.play(harness_pod(self._settings, self._owner, errand), delivery.arrived, until)
            if isinstance(result, Over):
                end = _over(result, time.monotonic() - until + deadline_seconds)
            else:
                end = await asyncio.to_thread(_keep_work, folder, result)
        except (Lost, OSError) as trouble:
            raise SandboxBroken(str(trouble)) from trouble
        finally:
            _remove(folder, "task.tar", "brought.tar")
        if attempt > 1:
            await self.discard(execution, attempt - 1)
        return end

    async def evaluate(self, execution: str, attempt: int, task: str) -> Evaluation:
        folder = self._attempt(execution, attempt)
        kept = folder / "evaluation.json"
        if kept.exists():
            return msgspec.json.decode(kept.read_bytes(), type=Evaluation)
        chosen = self._tasks[task]
        began = time.monotonic()
        try:
            result = await self._judge(execution, attempt, chosen, folder)
            evaluation = replace(await asyncio.to_thread(_score, chosen, folder, result), seconds=time.monotonic() - began)
            fresh = folder / ".evaluation.json"
            fresh.write_bytes(msgspec.json.encode(evaluation))
            fresh.rename(kept)
        except (Lost, WireError, OSError) as trouble:
            raise EvaluatorCrashed(f"task {task}: {trouble}") from trouble
        finally:
            _remove(folder, "task.tar", "brought.tar")
        await self.discard(execution, attempt)
        return evaluation

    def work(self, execution: str, attempt: int) -> str:
        return f"executions/{execution}/{attempt}/work.tar"

    async def discard(self, execution: str, attempt: int) -> None:
        """Nobody will evaluate this attempt (again): remove what is large of it."""
        folder = self._attempt(execution, attempt)
        work = folder / "work.tar"
        with contextlib.suppress(FileNotFoundError):
            if work.stat().st_size > KEEP_BYTES:
                work.unlink()

    async def stop_all(self) -> None:
        if hasattr(self, "_crew"):
            await self._crew.stop()

    async def _judge(self, execution: str, attempt: int, task: Task, folder: Path) -> Report | Over:
        """Behind a door of its own: that of the harness is closed by now, and this one does not lead to the model."""
        await self._crew.gone(pod_name(self._settings.job, Errand("sandbox", execution, attempt, "", "", "", 0.0)))
        order = orders.evaluator_order(task, self.limits)
        await asyncio.to_thread(self._write_evaluator, folder, order, task)
        seconds = START_SECONDS + task.verifier_seconds
        delivery = _delivery(folder, 1, order, time.monotonic() + seconds)
        key, run = secrets.token_urlsafe(24), secrets.token_hex(4)
        door = f"{execution}-{attempt}-evaluator-{run}"
        errand = Errand("evaluator", execution, attempt, run, door, key, seconds, self._image(task)[0])
        opened = OpenExecution(door, 1, key, "evaluator", Sampling(max_tokens=1), deadline=time.time() + seconds + GATEWAY_SECONDS, model=False)
        await _insist(lambda: self._gateway.open(opened))
        try:
            with self.deliveries.expect(door, delivery):
                return await self._crew.play(harness_pod(self._settings, self._owner, errand), delivery.arrived)
        finally:
            with contextlib.suppress(WireError):  # else its deadline ends it
                await self._gateway.close(door, 1)

    def _write_harness(self, folder: Path, execution: str, key: str, task: Task) -> Order:
        instruction = folder / "instruction.md"
        instruction.write_text(task.instruction, encoding="utf-8")
        launch = presets.launch_in_image(self._job, task, f"http://{RELAY}/x/{execution}", key, instruction)
        order = orders.harness_order(task, launch, self.limits)
        files = {inside.lstrip("/"): outside.read_bytes() for inside, outside in launch.files.items()}
        archive.write(folder / "task.tar", order, {"app": task.files}, files, empty=("logs/agent", "logs/artifacts"), left_out=_build_files())
        return order

    def _write_evaluator(self, folder: Path, order: Order, task: Task) -> None:
        work = folder / "work.tar"
        folders = {TESTS.lstrip("/"): task.tests} | ({} if work.exists() else {"app": task.files})
        empty = ("logs/agent", "logs/artifacts", "logs/verifier")
        archive.write(folder / "task.tar", order, folders, {}, empty=empty, work=work if work.exists() else None, left_out=_build_files())

    def _image(self, task: Task) -> tuple[str, bool]:
        """And whether it brings files of the task."""
        return task.image or self._job.spec.harness.image, bool(task.image)

    def _attempt(self, execution: str, attempt: int) -> Path:
        return self._folder / execution / str(attempt)


def _delivery(folder: Path, attempt: int, order: Order, until: float) -> Delivery:
    return Delivery(attempt, folder / "task.tar", folder / "brought.tar", tuple(order["bring"]), order["bring_bytes"], until)


def _build_files() -> frozenset[str]:
    return frozenset(f"app/{name}" for name in BUILD_FILES)


def _begin(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _over(over: Over, seconds: float) -> HarnessEnd:
    """The pod is gone, and its work with it: what the task began with is what is scored."""
    if over.broken:
        raise SandboxBroken(over.broken)
    return HarnessEnd(137, False, seconds, "", over.stopped)


def _keep_work(folder: Path, report: Report) -> HarnessEnd:
    brought = folder / "brought.tar"
    output = archive.read(brought, (OUTPUT,), 2**26).get(OUTPUT) or b""
    (folder / "harness.log").write_bytes(output)
    if not report["refused"]:
        brought.rename(folder / "work.tar")
    return HarnessEnd(report["exit_code"], report["timed_out"], report["seconds"], report["tail"], report["stopped"] or report["refused"])


def _score(task: Task, folder: Path, result: Report | Over) -> Evaluation:
    if isinstance(result, Over):
        raise EvaluatorCrashed(f"task {task.name}: tests: {result.broken or result.stopped}")
    ended = result["tail"][-300:]
    if result["timed_out"] or result["stopped"] or result["refused"]:
        why = result["stopped"] or result["refused"] or f"not done within {task.verifier_seconds:g} s"
        raise EvaluatorCrashed(f"task {task.name}: tests: {why}; their output ends with {ended!r}")
    verifier = folder / "evaluation" / "logs" / "verifier"
    shutil.rmtree(folder / "evaluation", ignore_errors=True)
    verifier.mkdir(parents=True)
    names = {f"logs/verifier/{name}": verifier / name for name in ("reward.json", "reward.txt")} | {OUTPUT: folder / "evaluation" / "output.log"}
    for name, content in archive.read(folder / "brought.tar", names, 2**26).items():
        if content is None:
            raise EvaluatorCrashed(f"task {task.name}: tests ended with exit code {result['exit_code']}: {name} is not a file")
        names[name].write_bytes(content if name == OUTPUT else content[: MAX_BYTES + 1])
    try:
        score = read_reward(verifier)
    except RewardError as problem:
        raise EvaluatorCrashed(
            f"task {task.name}: tests ended with exit code {result['exit_code']}: {problem}; their output ends with {ended!r}"
        ) from problem
    work = folder / "work.tar"  # gone with its pod: the tests saw the task as it was given
    digest = tree.digest_of_file(work) if work.exists() else ""
    return Evaluation(score, f"tests ended with exit code {result['exit_code']}", result["seconds"], valid=work.exists(), digest=digest)


def _remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


async def _insist[A](call: Callable[[], Awaitable[A]]) -> A:
    """Until the gateway answers, for at most `GATEWAY_SECONDS`."""
    give_up = time.monotonic() + GATEWAY_SECONDS
    while True:
        try:
            return await call()
        except Unreachable:
            if time.monotonic() >= give_up:
                raise
            await asyncio.sleep(RETRY_SECONDS)
