"""One operator leads: a coordination Lease, and the certainty that a leader has stopped before another may begin.

Times of other machines are never compared with ours: a lease counts as free when its record has not changed for its duration on our clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tidemill.telemetry.logs import Log
from tidemill_operator.config import LeaseConfig
from tidemill_operator.kube import Conflict, Gone, Kube, KubeError
from tidemill_operator.metrics import LEADER
from tidemill_operator.names import Manifest
from tidemill_operator.times import micro_stamp

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """A foreign record as it was when it last changed."""

    holder: str
    version: str
    since: float  # on our clock
    duration_seconds: float


def may_take(seen: Seen | None, me: str, now: float) -> bool:
    return seen is None or seen.holder in ("", me) or now - seen.since > seen.duration_seconds


def noticed(seen: Seen | None, lease: Manifest, now: float) -> Seen:
    """The record as it is now; `since` moves only when it changed."""
    version, spec = lease["metadata"]["resourceVersion"], lease.get("spec") or {}
    since = seen.since if seen is not None and seen.version == version else now
    return Seen(spec.get("holderIdentity") or "", version, since, float(spec.get("leaseDurationSeconds") or 15))


class Leadership:
    """`holds()` is true from the first renewal until `renewSeconds` after the last: less than the lease lives, by a margin for stopping."""

    def __init__(self, kube: Kube, config: LeaseConfig, namespace: str, identity: str, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._config = config
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._lease: Manifest | None = None
        self._seen: Seen | None = None
        self._renewed = float("-inf")

    def holds(self) -> bool:
        return self._clock() - self._renewed < self._config.renew_seconds

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, do `work` while it is held, give it back. Returns when the work ends or the lease is lost; the process then exits."""
        await self._acquire()
        LEADER.set(1)
        _log.info("leading", identity=self._identity)
        task = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._keep())
        try:
            await asyncio.wait({task, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            LEADER.set(0)
            renewing.cancel()
            task.cancel()
            await asyncio.wait({task, renewing}, timeout=self._config.duration_seconds - self._config.renew_seconds - self._config.retry_seconds)
            if task.done():
                await self._give_back()
        if task.done() and not task.cancelled():
            task.result()

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._try():
                    return
            except KubeError as trouble:
                _log.warning("lease cannot be taken", reason=str(trouble))
            await asyncio.sleep(self._config.retry_seconds * random.uniform(0.8, 1.2))

    async def _keep(self) -> None:
        """Returns when the lease is lost."""
        while self.holds():
            await asyncio.sleep(self._config.retry_seconds * random.uniform(0.8, 1.2))
            left = self._config.renew_seconds - (self._clock() - self._renewed)
            try:
                if not await asyncio.wait_for(self._try(), max(0.1, left)):
                    break
            except (KubeError, TimeoutError) as trouble:
                _log.warning("lease cannot be renewed", reason=str(trouble))
        self._renewed = float("-inf")
        _log.warning("lease lost", identity=self._identity)

    async def _try(self) -> bool:
        """Take or renew. The moment that counts is the one before the request, because the server may write it late but never early."""
        before = self._clock()
        if self._lease is not None and self.holds():
            with contextlib.suppress(Conflict):  # an answer of ours was lost, or the lease is another's: read it
                await self._write(self._lease)  # as we wrote it last: where time is short one call is better than two
                self._renewed = before
                return True
        try:
            lease = await self._kube.get("Lease", self._namespace, self._config.name)
        except Gone:
            lease = None
        if lease is not None:
            self._seen = noticed(self._seen, lease, before)
            if not may_take(self._seen, self._identity, before):
                return False
        try:
            await self._write(lease)
        except Conflict:
            return False
        self._renewed = before
        return True

    async def _write(self, lease: Manifest | None) -> None:
        stamp = micro_stamp(time.time())
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": stamp, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": int(self._config.duration_seconds), "renewTime": stamp}
        if lease is None:
            meta = {"name": self._config.name, "namespace": self._namespace}
            self._lease = await self._kube.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec})
        else:
            self._lease = await self._kube.replace({**lease, "spec": spec})

    async def _give_back(self) -> None:
        if self._lease is None or not self.holds():
            return
        try:
            await asyncio.wait_for(self._kube.replace({**self._lease, "spec": {**self._lease["spec"], "holderIdentity": ""}}), 2.0)
        except (KubeError, TimeoutError):
            return  # it runs out by itself
        finally:
            self._renewed = float("-inf")
