"""Carries out a plan: writes, and takes what the API server answers into the caches, so that the next plan sees it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidemill.telemetry.logs import Log
from tidemill_operator import ownership
from tidemill_operator.actions import Action, Apply, Delete, DryRun, Event, GiveBack, LookAgain, PatchStatus, digest
from tidemill_operator.caches import Caches
from tidemill_operator.events import Recorder
from tidemill_operator.kube import Conflict, Gone, Kube, KubeError, Unavailable
from tidemill_operator.names import Manifest
from tidemill_operator.observed import BackOff
from tidemill_operator.placement import LONGEST_WAIT_SECONDS
from tidemill_operator.resources import RESOURCES

REPEAT_SECONDS = 60.0
"""The same status is written again only after this time: definitions older than this operator drop fields, which then seem to be missing for ever."""

_log = Log(__name__)


class Taken(KubeError):
    """Somebody else's object has the name that ours needs."""


class NotLeading(Exception):
    """The lease may be another's by now: nothing is written any more."""


@dataclass(slots=True)
class Remembered:
    """What a job's passes know from one to the next, and a new leader may do without."""

    since: float = 0.0  # when the job was first looked at
    dry_run: str | None = None
    dry_run_at: float = 0.0
    back_offs: dict[str, BackOff] = field(default_factory=dict)
    unmoved: set[str] = field(default_factory=set)  # uids
    applied: dict[str, float] = field(default_factory=dict)  # by uid: when what is there was last applied again
    trouble: str = ""
    status_written: float = 0.0
    statuses: dict[str, tuple[str, float]] = field(default_factory=dict)  # by uid: digest of the last one written, and when

    def not_after(self, now: float) -> None:
        """A clock that was set back must not keep anything waiting until it comes by again."""
        self.since, self.dry_run_at, self.status_written = (min(at, now) for at in (self.since, self.dry_run_at, self.status_written))
        self.back_offs = {gang: BackOff(off.times, min(off.until, now + LONGEST_WAIT_SECONDS * 2)) for gang, off in self.back_offs.items()}
        self.statuses = {uid: (what, min(at, now)) for uid, (what, at) in self.statuses.items()}
        self.applied = {uid: min(at, now) for uid, at in self.applied.items()}


class Applier:
    def __init__(self, kube: Kube, caches: Caches, recorder: Recorder, leads: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._kube = kube
        self._caches = caches
        self._recorder = recorder
        self._leads = leads
        self._clock = clock

    async def carry_out(self, actions: Iterable[Action], memory: Remembered) -> None:
        """All of them, as far as they go: one that is refused does not keep the others, least of all the status, from being written.

        Raises:
            KubeError: the first failure, after the others have been tried.
            NotLeading: at once.
        """
        failures: list[KubeError] = []
        for action in actions:
            if not self._leads():
                raise NotLeading("the lease was not renewed in time")
            try:
                await self._do(action, memory)
            except Gone as gone:
                if isinstance(action, Apply):
                    failures.append(gone)
            except KubeError as failure:
                if not (isinstance(failure, Conflict) and isinstance(action, Delete | PatchStatus)):
                    failures.append(failure)
                if failure.status == 0:
                    break  # the API server is away; the rest would wait in vain
        memory.trouble = str(failures[0]) if failures and not isinstance(failures[0], Unavailable | Conflict) else ""
        if failures:
            raise failures[0]

    async def apply(self, action: Apply) -> Manifest:
        """Answers the object as it is then. Raises KubeError; `Taken` when the name is somebody else's."""
        manifest, ref = action.manifest, action.ref
        if not action.uid:
            await self._check_free(manifest)
        else:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "uid": action.uid}}
        try:
            made = await self._kube.apply(manifest)
        except Conflict:
            if not RESOURCES[ref.kind].watched:
                self._caches.remove(ref, action.uid)  # it may be gone, or another one, and no watch would say so
            raise
        self._caches.absorb(made)
        return made

    async def _check_free(self, manifest: Manifest) -> None:
        """An apply would take over whatever has the name. What belongs to the same owner is ours, and was only not seen yet."""
        meta = manifest["metadata"]
        try:
            found = await self._kube.get(manifest["kind"], meta["namespace"], meta["name"])
        except Gone:
            return
        owners = {owner["uid"] for owner in meta["ownerReferences"]}
        if owners.isdisjoint(owner["uid"] for owner in found["metadata"].get("ownerReferences") or ()):
            raise Taken(
                409,
                f"{manifest['kind']} {meta['name']} is there and does not belong to this job, so it is left alone: wait until it is gone if it is an "
                "earlier job's, else delete it or give the job another name",
            )

    async def _do(self, action: Action, memory: Remembered) -> None:
        match action:
            case Apply(manifest):
                made = await self.apply(action)
                fields = ownership.managed(made["metadata"]) if action.ref.kind != "Pod" else None
                if action.uid:
                    memory.applied[action.uid] = self._clock()
                if fields is not None and ownership.taken(manifest, fields):
                    memory.unmoved.add(made["metadata"]["uid"])  # an admission rule of the cluster has the last word: no use to insist
            case Delete(ref, uid, reason, force):
                _log.info("deleting", kind=ref.kind, namespace=ref.namespace, name=ref.name, reason=reason)
                await self._kube.delete(ref.kind, ref.namespace, ref.name, uid, force=force)
            case PatchStatus(ref, uid, status):
                told, at = memory.statuses.get(uid, ("", 0.0))
                if told == digest(status) and self._clock() - at < REPEAT_SECONDS:
                    return
                patch = {"metadata": {"uid": uid}, "status": status}
                self._caches.absorb(await self._kube.merge(ref.kind, ref.namespace, ref.name, patch, "status"))
                memory.statuses[uid] = (digest(status), self._clock())
                if ref.kind == "RLJob":
                    memory.status_written = self._clock()
            case Event():
                await self._recorder.record(action)
            case DryRun(_, manifests):
                memory.dry_run, memory.dry_run_at = await self._refusal(manifests), self._clock()
            case GiveBack(gang, times, until):
                memory.back_offs.pop(gang, None)
                if times:
                    memory.back_offs[gang] = BackOff(times, until)
            case LookAgain():
                return  # the queue's business

    async def _refusal(self, manifests: Iterable[Manifest]) -> str:
        for manifest in manifests:
            try:
                await self._kube.apply(manifest, dry_run=True)
            except Unavailable:
                raise
            except KubeError as refusal:
                return str(refusal)
        return ""
