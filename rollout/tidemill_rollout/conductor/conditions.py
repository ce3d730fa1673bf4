"""What holds the job back now, and for whom it has not yet been written down."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.telemetry.events import ConditionChanged
from tidemill.telemetry.logs import Log

STORE = "StoreWritable"
DISK = "DiskSpace"
GATEWAY = "GatewayReady"
CORE = "CoreReady"
PAUSING = (STORE, DISK, GATEWAY, CORE)
"""Under these no execution is started and the job says Paused; the others only tell that something is amiss."""

FULL_DISK = (STORE, DISK)

_log = Log(__name__)


class Conditions:
    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._cleared: dict[str, float] = {}
        self.untold: list[ConditionChanged] = []

    def state(self, kind: str, text: str, now: float) -> None:
        """Set what `kind` says; an empty text clears it."""
        if self._held.get(kind, "") == text:
            return
        self.untold.append(ConditionChanged(time=now, kind=kind, text=text))
        if text:
            self._held[kind] = text
            _log.warning("condition", kind=kind, text=text)
        else:
            del self._held[kind]
            self._cleared[kind] = now
            _log.info("condition cleared", kind=kind)

    def holds(self, kind: str) -> bool:
        return kind in self._held

    def held(self, kinds: Iterable[str], since: float) -> bool:
        """Whether one of them held the job back, now or at some time after `since`."""
        return any(kind in self._held or self._cleared.get(kind, since) > since for kind in kinds)

    @property
    def pausing(self) -> bool:
        return any(kind in self._held for kind in PAUSING)

    @property
    def text(self) -> str:
        return "; ".join(f"{kind}: {text}" for kind, text in self._held.items())
