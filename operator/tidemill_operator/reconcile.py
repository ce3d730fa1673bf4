"""One pass over one job: see, plan, carry out. Also starts and ends the task that follows the job's conductor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiohttp

from tidemill.telemetry.logs import Log
from tidemill.wire.http import WireError
from tidemill.wire.trust import Credential
from tidemill_operator import jwks, storage
from tidemill_operator.actions import Apply, LookAgain, stamped
from tidemill_operator.apply import Applier, NotLeading, Remembered, Taken
from tidemill_operator.caches import Caches, Key
from tidemill_operator.config import OperatorConfig
from tidemill_operator.kube import Conflict, Kube, KubeError
from tidemill_operator.lifecycle import Stage, stage_of
from tidemill_operator.metrics import RECONCILE_ERRORS, RECONCILE_SECONDS
from tidemill_operator.names import CONDUCTOR_URL
from tidemill_operator.observed import Job, Observed, Reading, own
from tidemill_operator.plan import context_of, plan
from tidemill_operator.queue import LONGEST_BACK_OFF_SECONDS, WorkQueue
from tidemill_operator.tide import Follower

LOOK_AGAIN_SECONDS = 5.0
"""Deadlines pass without an event; and whatever was missed is seen then."""

COALESCE_SECONDS = 0.5
"""A busy job's readings change many times a second; a pass for each would be no use to anybody."""

TAKEN_SECONDS = 5.0
"""A name that is still an earlier job's is free within seconds: somebody who deletes a job and makes it anew waits for it."""

ASK_AGAIN_SECONDS = 30.0
"""A dry run that was refused is repeated: quotas and admission rules change."""

_log = Log(__name__)


class Reconciler:
    def __init__(
        self,
        config: OperatorConfig,
        kube: Kube,
        caches: Caches,
        applier: Applier,
        queue: WorkQueue[Key],
        session: aiohttp.ClientSession,
        credential: Credential,
        leads: Callable[[], bool],
    ) -> None:
        self.cluster_keys: jwks.ClusterKeys | None = None
        self.gangs = False
        self._config = config
        self._kube = kube
        self._caches = caches
        self._applier = applier
        self._queue = queue
        self._session = session
        self._credential = credential
        self._leads = leads
        self._memory: dict[Key, tuple[str, Remembered]] = {}
        self._followers: dict[Key, tuple[Follower, asyncio.Task[None]]] = {}

    async def reconcile(self, key: Key) -> None:
        """Raises KubeError: the pass is to be repeated."""
        job = self._caches.job(key)
        if job is None:
            self._memory.pop(key, None)
            await self._leave(key)
            return
        started, now = time.monotonic(), time.time()
        uid, memory = self._memory.get(key, ("", Remembered()))
        if uid != job.uid:
            memory = Remembered(since=now)
            self._memory[key] = (job.uid, memory)
            await self._leave(key)  # it listened to an earlier job of this name
        memory.not_after(now)
        if memory.dry_run and now - memory.dry_run_at > ASK_AGAIN_SECONDS:
            memory.dry_run = None
        observed = self._observe(key, job, memory)
        try:
            await self._follow(key, observed, now)  # first: whatever cannot be written, the flips go on
            actions = plan(observed, self._config, now)
            await self._applier.carry_out(actions, memory)
        finally:
            RECONCILE_SECONDS.observe(time.monotonic() - started)
        soonest = min((action.at - time.time() for action in actions if isinstance(action, LookAgain)), default=LOOK_AGAIN_SECONDS)
        self._queue.add(key, min(LOOK_AGAIN_SECONDS, max(0.0, soonest)))

    def failed(self, key: Key, failure: Exception) -> tuple[float, float]:
        """Answers for how many seconds the job is put off at least and at most."""
        RECONCILE_ERRORS.inc()
        if isinstance(failure, KubeError | NotLeading):
            if not isinstance(failure, Conflict):
                _log.warning("pass failed", job="/".join(key), reason=str(failure))
            at_least = failure.retry_after_seconds if isinstance(failure, KubeError) else 0.0
            return at_least, TAKEN_SECONDS if isinstance(failure, Taken) else LONGEST_BACK_OFF_SECONDS
        _log.exception("pass failed by a defect of the operator", job="/".join(key))
        return 5.0, LONGEST_BACK_OFF_SECONDS

    async def stop(self) -> None:
        for key in tuple(self._followers):
            await self._leave(key)

    def _observe(self, key: Key, job: Job, memory: Remembered) -> Observed:
        follower = self._followers.get(key)
        seen = Observed(
            job=job,
            cells=self._caches.cells(key),
            pods=self._caches.pods(key),
            things=self._caches.things(key),
            nodes=self._caches.nodes(),
            reading=follower[0].reading if follower else Reading(since=memory.since),
            back_offs=dict(memory.back_offs),
            trust=jwks.trust(self.cluster_keys, self._config, job.namespace, job.name),
            gangs=self.gangs,
            dry_run=memory.dry_run,
            unmoved=frozenset(memory.unmoved),
            applied=dict(memory.applied),
            trouble=memory.trouble,
            status_written=memory.status_written,
            cells_written={uid: at for uid, (_, at) in memory.statuses.items()},
        )
        return own(seen)

    async def _follow(self, key: Key, observed: Observed, now: float) -> None:
        """A job that runs or ends is listened to."""
        url = self._url_of(observed)
        stage = stage_of(observed, now)
        wanted = url and stage in (Stage.RUN, Stage.STOPPING, Stage.ENDING) and not observed.job.deleting
        current = self._followers.get(key)
        if current is not None and (not wanted or current[0].url != url or current[1].done()):
            await self._leave(key)
            current = None
        if wanted and current is None:
            follower = Follower(
                key, url, self._kube, self._caches, self._session, self._credential, self._leads, lambda: self._queue.add(key, COALESCE_SECONDS)
            )
            current = (follower, asyncio.create_task(follower.run()))
            self._followers[key] = current
        if current is not None and stage is Stage.ENDING:
            await self._keep_history(observed, current[0])

    async def _keep_history(self, observed: Observed, follower: Follower) -> None:
        context = context_of(observed, self._config)
        if context is None:
            return
        try:
            lines = await follower.history()
        except WireError as trouble:
            _log.warning("events of the ended job cannot be fetched", job=observed.job.name, reason=str(trouble))
            return
        try:
            await self._applier.apply(Apply(stamped(storage.history(context, lines))))
        except Taken as taken:
            _log.warning("events of the ended job cannot be kept", job=observed.job.name, reason=str(taken))

    def _url_of(self, observed: Observed) -> str:
        if self._config.development and CONDUCTOR_URL in observed.job.annotations:
            return observed.job.annotations[CONDUCTOR_URL]
        context = context_of(observed, self._config)
        return context.conductor_url if context and context.conductor_ip else ""

    async def _leave(self, key: Key) -> None:
        follower = self._followers.pop(key, None)
        if follower is not None:
            task = follower[1]
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is not None:
                _log.error("a follower died", job="/".join(key), reason=repr(task.exception()))
