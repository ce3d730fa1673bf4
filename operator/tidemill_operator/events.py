"""Events for `kubectl describe`: written once, counted up when they repeat."""

from __future__ import annotations

import time
from collections import OrderedDict

from tidemill.api.model import API_VERSION
from tidemill_operator.actions import Event, digest
from tidemill_operator.kube import Gone, Kube
from tidemill_operator.names import Manifest
from tidemill_operator.times import micro_stamp

REMEMBERED = 2000
REPEAT_SECONDS = 60.0
"""A repetition is written at most this often."""

CONTROLLER = "tidemill.dev/operator"


class Recorder:
    def __init__(self, kube: Kube, instance: str) -> None:
        self._kube = kube
        self._instance = instance
        self._known: OrderedDict[str, tuple[str, int, float]] = OrderedDict()  # name, count, last written

    async def record(self, event: Event) -> None:
        key = digest({"uid": event.uid, "reason": event.reason, "message": event.message})
        now = time.time()
        name, count, written = self._known.pop(key, ("", 0, 0.0))
        count += 1
        if name and now - written < REPEAT_SECONDS:
            self._known[key] = (name, count, written)
            return
        try:
            if name:
                series = {"series": {"count": count, "lastObservedTime": micro_stamp(now)}}
                await self._kube.merge("Event", event.about.namespace, name, series)
            else:
                name = f"{event.about.name}.{key[:8]}{int(now * 1000):x}"
                await self._kube.create(self._manifest(event, name, now))
        except Gone:  # expired, or its namespace went
            return
        self._known[key] = (name, count, now)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _manifest(self, event: Event, name: str, now: float) -> Manifest:
        about = event.about
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace},
            "eventTime": micro_stamp(now),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
            "action": event.action,
            "reason": event.reason,
            "note": event.message[:1000],
            "type": event.kind.value,
            "regarding": {"apiVersion": API_VERSION, "kind": about.kind, "namespace": about.namespace, "name": about.name, "uid": event.uid},
        }
