"""Puts the operator together: stand by for the lease, then fill the caches, watch, reconcile, sweep, until the lease or a task is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable

import aiohttp

from tidemill.telemetry.logs import Log
from tidemill.wire.trust import Credential
from tidemill_operator import handlers, health, jwks, signals
from tidemill_operator.apply import Applier
from tidemill_operator.caches import Caches, Key
from tidemill_operator.config import OperatorConfig
from tidemill_operator.events import Recorder
from tidemill_operator.health import Pulse
from tidemill_operator.kube import Kube, KubeError, connect
from tidemill_operator.lease import Leadership
from tidemill_operator.metrics import QUEUE_DEPTH
from tidemill_operator.queue import WorkQueue
from tidemill_operator.reconcile import Reconciler
from tidemill_operator.resources import RESOURCES
from tidemill_operator.sweep import SWEEP_SECONDS, Sweeper

WORKERS = 8
KEYS_SECONDS = 300.0
RETRY_SECONDS = 2.0
STOP_SECONDS = 8.0
"""What a leader needs at most to stop: below the pod's grace period."""

_log = Log(__name__)


async def run(config: OperatorConfig, credential: Credential, host: str = "0.0.0.0") -> bool:
    """Returns True when it was told to stop, False when leadership was lost; the process then exits, and starts anew."""
    told = asyncio.Event()
    signals.claim(told)
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}"
    pulse = Pulse()
    runners = await health.serve(host, config.health_port, config.metrics_port, pulse)
    client = await connect()
    try:
        async with client, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            kube = Kube(client)
            leadership = Leadership(kube, config.lease, config.operator_namespace, identity, time.monotonic)
            leading = asyncio.create_task(
                leadership.lead(lambda: _lead(config, kube, session, credential, leadership, identity, pulse, lambda: signals.claim(told)))
            )
            telling = asyncio.create_task(told.wait())
            await asyncio.wait({leading, telling}, return_when=asyncio.FIRST_COMPLETED)
            for task in (leading, telling):
                task.cancel()
            await asyncio.wait({leading, telling}, timeout=STOP_SECONDS)
            if leading.done() and not leading.cancelled() and leading.exception() is not None:
                _log.error("stopped by a failure", reason=repr(leading.exception()))
            return told.is_set()
    finally:
        pulse.leading = False
        for runner in runners:
            await runner.cleanup()


async def _lead(
    config: OperatorConfig,
    kube: Kube,
    session: aiohttp.ClientSession,
    credential: Credential,
    leadership: Leadership,
    identity: str,
    pulse: Pulse,
    started: Callable[[], None],
) -> None:
    caches, queue = Caches(), WorkQueue[Key](time.monotonic)
    applier = Applier(kube, caches, Recorder(kube, identity), leadership.holds, time.time)
    reconciler = Reconciler(config, kube, caches, applier, queue, session, credential, leadership.holds)
    sweeper = Sweeper(kube, caches, config.namespaces, lambda keys: _enqueue(queue, keys))
    await _persist(sweeper.fill)
    reconciler.cluster_keys = await _persist(lambda: jwks.fetch(kube))
    reconciler.gangs = await _persist(lambda: kube.has(RESOURCES["PodGroup"]))
    _enqueue(queue, set(caches.jobs()))
    pulse.overdue_seconds = lambda: queue.schedule.overdue_seconds(time.monotonic())
    pulse.stale_watches = sweeper.stale
    pulse.leading = True
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_watch(caches, queue, config.namespaces, stop, started))
            group.create_task(queue.run(reconciler.reconcile, reconciler.failed, WORKERS))
            group.create_task(_sweep(sweeper, queue))
            group.create_task(_refresh_keys(kube, reconciler, caches, queue))
    finally:
        pulse.leading = False
        stop.set()
        await reconciler.stop()


class WatchingEnded(Exception):
    """kopf has given up; only a new process helps."""


async def _watch(caches: Caches, queue: WorkQueue[Key], namespaces: tuple[str, ...], stop: asyncio.Event, started: Callable[[], None]) -> None:
    await handlers.watch(caches, queue, namespaces, stop, started)
    if not stop.is_set():
        raise WatchingEnded("the watches have ended")


async def _sweep(sweeper: Sweeper, queue: WorkQueue[Key]) -> None:
    QUEUE_DEPTH.set_function(lambda: queue.schedule.waiting(time.monotonic()))
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        with contextlib.suppress(KubeError):
            await sweeper.sweep()


async def _refresh_keys(kube: Kube, reconciler: Reconciler, caches: Caches, queue: WorkQueue[Key]) -> None:
    """The cluster may begin to sign with a new key; jobs must know it before tokens carry it."""
    while True:
        await asyncio.sleep(KEYS_SECONDS)
        with contextlib.suppress(KubeError):
            keys = await jwks.fetch(kube)
            if keys != reconciler.cluster_keys:
                reconciler.cluster_keys = keys
                _enqueue(queue, set(caches.jobs()))


async def _persist[T](read: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await read()
        except KubeError as trouble:
            _log.warning("cannot begin", reason=str(trouble))
            await asyncio.sleep(RETRY_SECONDS)


def _enqueue(queue: WorkQueue[Key], keys: set[Key]) -> None:
    for key in keys:
        queue.add(key)
