"""The lives of sandbox pods: each is made once, watched to its end, and removed, whatever the API server does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from tidemill.telemetry.logs import Log
from tidemill_rollout.sandbox import ending
from tidemill_rollout.sandbox.ending import Over
from tidemill_rollout.sandbox.enter import UPLOAD_SECONDS, Report
from tidemill_rollout.sandbox.manifest import GRACE_SECONDS, START_SECONDS
from tidemill_rollout.sandbox.pods import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, ApiAway, ApiError, Pod, Pods, Watch
from tidemill_rollout.sandbox.process import STOPPED

RUN = "tidemill.dev/run"
LOOK_SECONDS = 2.0
UNSEEN_SECONDS = 20.0
"""A pod that the watch does not show for so long is asked for by name."""

FORCE_SECONDS = GRACE_SECONDS + 30.0
"""A kubelet that has not ended a pod by then is dead, or its node lost: the pod is struck from the list. Its key is dead too."""

GONE_SECONDS = 60.0
"""A harness that brought its work waits so long for its pod to go; then the conductor goes on, and the removal too."""

STOP_SECONDS = 10.0

log = Log(__name__)


class Lost(Exception):
    """The pod could not be made."""


class Crew:
    """All sandbox pods of one job."""

    def __init__(self, pods: Pods, tasks: asyncio.TaskGroup) -> None:
        self._pods = pods
        self._group = tasks
        self._watch = Watch(pods)
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._playing: set[str] = set()
        self._stopped = asyncio.Event()
        self._closed = False
        self._swept = asyncio.Event()
        self._troubles: dict[str, str] = {}  # by image: why pods of it do not start

    @property
    def trouble(self) -> str:
        """Why sandboxes do not start at present; empty when, as far as is known, they do."""
        return "; ".join(self._troubles.values())

    def start(self) -> None:
        """Watch, and remove what an earlier conductor left: its executions begin anew."""
        self._tasks = [self._group.create_task(self._watch.keep()), self._group.create_task(self._sweep())]

    async def play(self, pod: Pod, arrived: asyncio.Future[Report], until: float = float("inf")) -> Report | Over:
        """From nothing to nothing. Returns what it brought, or why it brings nothing.

        Raises:
            Lost: it could not be made.
        """
        name = pod["metadata"]["name"]
        if self._stopped.is_set():
            return Over(stopped=STOPPED)
        self._playing.add(name)
        made = False
        try:
            if not await self._unless_stopped(self._make(pod, until)):
                return Over(stopped=STOPPED)
            made = True
            outcome = await self._outcome(pod, arrived, until)
            if isinstance(outcome, Over) and outcome.unstarted:
                self._troubles[_image(pod)] = outcome.broken
            return outcome
        finally:
            if not self._closed:
                self._remove(name)
            try:
                if made:  # else nobody has seen it; should it appear after all, it is removed all the same
                    await self.gone(name, GONE_SECONDS)
            finally:
                self._playing.discard(name)

    async def gone(self, name: str, seconds: float | None = None) -> None:
        """Return when a pod of this name that is being removed is no more."""
        await self._unless_stopped(self._swept.wait(), seconds)
        if removal := self._removals.get(name):
            await self._unless_stopped(asyncio.shield(removal), seconds)

    async def stop(self) -> None:
        """End all pods, and start no more. Best effort: the next conductor, or the cluster, removes what is left."""
        self._stopped.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._playing or self._removals:
                    await asyncio.sleep(0.02)
        self._closed = True
        for task in (*self._tasks, *self._removals.values()):
            task.cancel()
        await self._pods.close()

    async def _make(self, pod: Pod, until: float) -> None:
        """Once, however often it is tried: the name is the attempt's, and a pod of that name that is not ours goes first."""
        name, run = pod["metadata"]["name"], pod["metadata"]["labels"][RUN]
        try:
            async with asyncio.timeout(until - time.monotonic() if until < float("inf") else None):
                await self._swept.wait()
                if removal := self._removals.get(name):
                    await asyncio.shield(removal)
        except TimeoutError as cause:
            raise Lost(f"pod {name} could not be made in time: what was there before could not be removed, is the API server away?") from cause
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._pods.create(pod)
                return
            except ApiError as error:
                if error.status == 409:
                    known = await self._known(name)
                    if known is not None and known["metadata"]["labels"].get(RUN) == run:
                        return
                    if known is not None:
                        await asyncio.shield(self._remove(name))
                elif not error.passes:
                    raise self._unmade(pod, f"pod {name} was refused: {error}") from error
                problem, wait = str(error), max(pause, error.retry_after)
            except ApiAway as trouble:
                problem, wait = str(trouble), pause
            if time.monotonic() + wait > until:
                raise self._unmade(pod, f"pod {name} could not be made in time: {problem}")
            await asyncio.sleep(min(wait, LONGEST_PAUSE_SECONDS))
            pause *= 2

    def _unmade(self, pod: Pod, why: str) -> Lost:
        self._troubles[_image(pod)] = why
        return Lost(why)

    async def _outcome(self, pod: Pod, arrived: asyncio.Future[Report], until: float) -> Report | Over:
        name, run = pod["metadata"]["name"], pod["metadata"]["labels"][RUN]
        active: float = pod["spec"]["activeDeadlineSeconds"]
        began = time.monotonic()
        seen, begun, looked = False, False, began
        while not arrived.done() and not self._stopped.is_set():
            now = time.monotonic()
            current = self._watch.get(name)
            if current is None and not seen and now - looked > UNSEEN_SECONDS:
                current, looked = await self._known(name, default=pod), now
                seen = current is None
            if current is not None and current["metadata"]["labels"].get(RUN) == run:
                seen = seen or "uid" in current["metadata"]
                if not begun and ending.started(current):
                    begun = True
                    self._troubles.pop(_image(pod), None)
                if ending.over(current, now - began) and (over := await self._confirmed(name, current, now - began)):
                    return over
            elif seen:
                return Over(broken=f"pod {name} is gone, somebody else deleted it")
            if now > min(until + UPLOAD_SECONDS + GRACE_SECONDS, began + active + START_SECONDS):
                return Over(broken=f"pod {name} brought nothing in its time")
            await self._either(arrived, self._watch.change(name, LOOK_SECONDS))
        return arrived.result() if arrived.done() else Over(stopped=STOPPED)

    async def _confirmed(self, name: str, seen: Pod, age_seconds: float) -> Over | None:
        """What was seen last may be old when the API server was away. An end is an end; the rest is asked again."""
        if seen.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return ending.over(seen, age_seconds)
        current = await self._known(name)
        return None if current is None else ending.over(current, age_seconds)

    def _remove(self, name: str) -> asyncio.Task[None]:
        """Begin to remove a pod, whatever its state. It goes on until the pod is gone."""
        running = self._removals.get(name)
        if running is not None:
            return running
        task = self._removals[name] = self._group.create_task(self._removal(name))
        task.add_done_callback(lambda _: self._removals.pop(name, None))
        return task

    async def _removal(self, name: str) -> None:
        began = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        asked = forced = told = False
        while True:
            try:
                late = time.monotonic() - began > FORCE_SECONDS
                if not asked or (late and not forced):
                    await self._pods.delete(name, grace_seconds=0 if late else None)
                    asked, forced = True, late
                if await self._pods.get(name) is None:
                    return
            except (ApiError, ApiAway) as trouble:
                if not told:
                    log.warning("a sandbox's pod cannot be removed yet", pod=name, reason=str(trouble))
                told = True
            await self._watch.change(name, min(pause, LOOK_SECONDS))
            pause *= 2

    async def _sweep(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._swept.is_set():
            try:
                left, _ = await self._pods.list()
            except (ApiError, ApiAway) as trouble:
                log.warning("sandboxes of before cannot be listed yet", reason=str(trouble))
                await asyncio.sleep(min(pause, LONGEST_PAUSE_SECONDS))
                pause *= 2
                continue
            for name in left:
                self._remove(name)
            self._swept.set()
            log.info("sandboxes of before are removed", pods=len(left))

    async def _known(self, name: str, default: Pod | None = None) -> Pod | None:
        """As the server knows it now; `default` when it does not answer."""
        try:
            return await self._pods.get(name)
        except (ApiError, ApiAway):
            return default

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any] | asyncio.Future[None], seconds: float | None = None) -> bool:
        """Whether it was done, in time and before `stop`."""
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()

    async def _either(self, arrived: asyncio.Future[Report], change: Coroutine[Any, Any, None]) -> None:
        tasks: set[asyncio.Task[Any]] = {asyncio.create_task(change), asyncio.create_task(self._stopped.wait())}
        try:
            await asyncio.wait({arrived, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _image(pod: Pod) -> str:
    """Of the container in which the task's work is done."""
    return str(pod["spec"]["containers"][0]["image"])
