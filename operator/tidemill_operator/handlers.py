"""The kopf shell: events only feed the caches and enqueue jobs. No decision is made here."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import kopf

from tidemill.api.model import GROUP
from tidemill_operator.actions import Ref
from tidemill_operator.caches import Caches, Key
from tidemill_operator.names import SELECTOR
from tidemill_operator.queue import WorkQueue
from tidemill_operator.resources import RESOURCES, Resource

EXIT_SECONDS = 10.0
"""Below the pod's grace period."""


async def watch(caches: Caches, queue: WorkQueue[Key], namespaces: tuple[str, ...], stop: asyncio.Event, started: Callable[[], None]) -> None:
    """Watch until `stop`. Returns early only when kopf has given up, which ends the process."""
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    _configure(settings)
    # Of the ways kopf knows, these need no library and reload by themselves.
    login = kopf.login_with_kubeconfig if os.environ.get("KUBECONFIG") else login_with_service_account
    kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(login)
    for resource in RESOURCES.values():
        if resource.watched:
            _feed(resource, registry, caches, queue)
            if resource.ours:
                settings.watching.label_selectors[resource.group, resource.version, resource.plural] = SELECTOR
    # kopf would make a name of the user's, and the image's user has none; names are for peering, which is off.
    scope: dict[str, Any] = {"identity": "tidemill", **({"namespaces": namespaces} if namespaces else {"clusterwide": True})}
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(registry=registry, settings=settings, standalone=True, stop_flag=stop, **scope)
    started()  # kopf has claimed the process's signals
    await kopf.run_tasks(tasks, ignored=others)


def login_with_service_account(**known: Any) -> kopf.ConnectionInfo | None:
    """As kopf does it, but by the address that every pod is told: kopf's name for it would make watching depend on the cluster's name server."""
    found = kopf.login_with_service_account(**known)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if found is None or not host:
        return found
    return dataclasses.replace(found, server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


def _configure(settings: kopf.OperatorSettings) -> None:
    """Values of those who run kopf for long: without time-outs a watch may hang for ever (nolar/kopf#957, #585)."""
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.networking.request_timeout = 30
    settings.networking.enforce_retry_after = True
    settings.queueing.worker_limit = None  # a limit below the number of objects is a deadlock (nolar/kopf#1244)
    settings.queueing.exit_timeout = 2.0
    settings.process.ultimate_exiting_timeout = EXIT_SECONDS
    settings.execution.default_backoff = 5
    settings.posting.enabled = False
    settings.scanning.disabled = True  # listing namespaces and CRDs is a right that a namespaced install does not have
    settings.persistence.finalizer = f"{GROUP}/kopf"  # never set: there is no handler that would need it


def _feed(resource: Resource, registry: kopf.OperatorRegistry, caches: Caches, queue: WorkQueue[Key]) -> None:
    async def absorb(event: Any, **_: Any) -> None:
        raw = dict(event["object"])
        raw.setdefault("kind", resource.kind)  # lists leave it out
        meta = raw["metadata"]
        if event["type"] == "DELETED":
            keys = caches.remove(Ref(resource.kind, meta.get("namespace", ""), meta["name"]), meta["uid"])
        else:
            keys = caches.absorb(raw)
        for key in keys:
            queue.add(key)

    kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=f"absorb-{resource.plural}")(absorb)
