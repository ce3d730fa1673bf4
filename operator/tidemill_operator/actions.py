"""What a plan may ask for. Plain data; `apply.py` carries it out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum

from tidemill_operator.names import APPLIED, Manifest


@dataclass(frozen=True, slots=True)
class Ref:
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply; owns exactly the fields that `manifest` has. Without `uid` it is to be made: what others have put there is left alone."""

    manifest: Manifest
    uid: str = ""

    @property
    def ref(self) -> Ref:
        meta = self.manifest["metadata"]
        return Ref(self.manifest["kind"], meta["namespace"], meta["name"])


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes this very object: another one of the same name is left alone."""

    ref: Ref
    uid: str
    reason: str
    force: bool = False  # without waiting for a kubelet that is away


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """`status` replaces the status of the object; refused when the object is another one by now."""

    ref: Ref
    uid: str
    status: Manifest


class EventKind(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """For `kubectl describe`. The same event again within minutes only raises its count."""

    about: Ref
    uid: str
    kind: EventKind
    reason: str
    message: str
    action: str = field(default="Reconcile")


@dataclass(frozen=True, slots=True)
class DryRun:
    """Ask the API server whether it would take these, before anything is created. They are remembered under `key`."""

    key: str
    manifests: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Nothing of `gang` (a cell, or "" for the whole job) is made again before `until`. times 0: it was placed, all is forgotten."""

    gang: str
    times: int
    until: float


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Nothing may be written yet, but something has to be at this time."""

    at: float


type Action = Apply | Delete | PatchStatus | Event | DryRun | GiveBack | LookAgain


def digest(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]


def stamped(manifest: Manifest) -> Manifest:
    """The manifest with the digest of itself among its annotations."""
    meta = manifest["metadata"]
    return {**manifest, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), APPLIED: digest(manifest)}}}
