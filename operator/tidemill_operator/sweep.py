"""Compares the caches with lists of the API server: finds what watches missed, and tells when a watch has died without a word."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from tidemill.telemetry.logs import Log
from tidemill_operator.actions import Ref
from tidemill_operator.caches import Caches, Key, ref_of
from tidemill_operator.kube import Gone, Kube
from tidemill_operator.names import Manifest
from tidemill_operator.resources import CACHED, Resource

SWEEP_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""A watch is this much behind at most; what it has not brought by then, it has missed."""

_log = Log(__name__)


class Sweeper:
    def __init__(self, kube: Kube, caches: Caches, namespaces: tuple[str, ...], concerned: Callable[[set[Key]], None]) -> None:
        self._misses: Counter[str] = Counter()  # sweeps in a row that found something missed, by kind
        self._kube = kube
        self._caches = caches
        self._namespaces = namespaces
        self._concerned = concerned

    def stale(self) -> set[str]:
        """Kinds whose watch is dead: once is a lag, twice is not."""
        return {kind for kind, times in self._misses.items() if times > 1}

    async def fill(self) -> None:
        """Everything, before anything is planned. Raises KubeError."""
        for resource in CACHED:
            for raw in (await self._list(resource)).values():
                self._caches.absorb(raw)

    async def sweep(self) -> None:
        """Raises KubeError."""
        for resource in CACHED:
            before = {ref: entry.uid for ref, entry in self._caches.entries.items() if ref.kind == resource.kind}
            there = await self._list(resource)
            behind = {ref for ref, raw in there.items() if self._caches.version(ref) < int(raw["metadata"]["resourceVersion"])}
            gone = {ref: uid for ref, uid in before.items() if ref not in there}
            if not behind and not gone:
                self._misses.pop(resource.kind, None)
                continue
            if resource.watched:
                await asyncio.sleep(GRACE_SECONDS)
            self._heal(resource, there, behind, gone)

    def _heal(self, resource: Resource, there: dict[Ref, Manifest], behind: set[Ref], gone: dict[Ref, str]) -> None:
        keys: set[Key] = set()
        missed = False
        for ref in behind:
            changed = self._caches.absorb(there[ref])
            missed |= self._caches.version(ref) == int(there[ref]["metadata"]["resourceVersion"]) and bool(changed)
            keys |= changed
        for ref, uid in gone.items():
            changed = self._caches.remove(ref, uid)
            missed |= bool(changed)
            keys |= changed
        if resource.watched:
            self._misses[resource.kind] = self._misses[resource.kind] + 1 if missed else 0
            if missed:
                _log.warning("a watch missed changes", kind=resource.kind, objects=len(behind) + len(gone))
        self._concerned(keys)

    async def _list(self, resource: Resource) -> dict[Ref, Manifest]:
        try:
            return {ref_of(raw): raw async for raw in self._kube.list(resource, self._namespaces)}
        except Gone:
            if resource.optional:
                return {}
            raise
