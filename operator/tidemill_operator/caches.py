"""What the operator knows of the cluster: reduced views, fed by watches, by our own writes and by sweeps; read by plans.

kopf's own indices keep an object whose deletion fell into the gap between two watches (a re-list after 410 only adds). These do not: a sweep
removes what a list no longer has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill_operator.actions import Ref
from tidemill_operator.names import JOB, Manifest
from tidemill_operator.observed import Cell, Job, Node, Pod, Thing
from tidemill_operator.reading import cell_view, job_of, node_of, pod_of, thing_of

type Key = tuple[str, str]
"""Namespace and name of a job."""


@dataclass(frozen=True, slots=True)
class Entry:
    uid: str
    version: int
    job: Key | None
    view: Job | Pod | Node | Thing
    cell: Cell | None = None


@dataclass(slots=True)
class Caches:
    entries: dict[Ref, Entry] = field(default_factory=dict)
    of_job: dict[Key, set[Ref]] = field(default_factory=lambda: defaultdict(set))

    def absorb(self, raw: Manifest) -> set[Key]:
        """Take in an object as it was at some time; older than what is known, it changes nothing. Answers the jobs that it concerns."""
        ref, entry = ref_of(raw), _entry(raw)
        known = self.entries.get(ref)
        if known is not None and known.version >= entry.version:
            return set()
        self._forget(ref)
        self.entries[ref] = entry
        if entry.job is not None:
            self.of_job[entry.job].add(ref)
        return self._concerned(known, entry)

    def remove(self, ref: Ref, uid: str) -> set[Key]:
        """The object with this uid is gone."""
        known = self.entries.get(ref)
        if known is None or known.uid != uid:
            return set()
        self._forget(ref)
        return self._concerned(known, None)

    def version(self, ref: Ref) -> int:
        """The resourceVersion that is known; 0 when the object is not."""
        known = self.entries.get(ref)
        return known.version if known else 0

    def jobs(self) -> tuple[Key, ...]:
        return tuple(key for key, refs in self.of_job.items() if Ref("RLJob", *key) in refs)

    def job(self, key: Key) -> Job | None:
        entry = self.entries.get(Ref("RLJob", *key))
        return entry.view if entry and isinstance(entry.view, Job) else None

    def cells(self, key: Key) -> tuple[Cell, ...]:
        found = (entry.cell for entry in self._entries(key) if entry.cell)
        return tuple(sorted(found, key=lambda c: (c.spec.kind.value == "Standalone", c.spec.ordinal)))

    def pods(self, key: Key) -> tuple[Pod, ...]:
        return tuple(sorted((e.view for e in self._entries(key) if isinstance(e.view, Pod)), key=lambda p: p.name))

    def things(self, key: Key) -> dict[Ref, Thing]:
        return {e.view.ref: e.view for e in self._entries(key) if isinstance(e.view, Thing)}

    def nodes(self) -> tuple[Node, ...]:
        return tuple(e.view for e in self.entries.values() if isinstance(e.view, Node))

    def _entries(self, key: Key) -> Iterable[Entry]:
        return (self.entries[ref] for ref in self.of_job.get(key, ()))

    def _forget(self, ref: Ref) -> None:
        known = self.entries.pop(ref, None)
        if known is not None and known.job is not None:
            refs = self.of_job[known.job]
            refs.discard(ref)
            if not refs:
                del self.of_job[known.job]

    def _concerned(self, old: Entry | None, new: Entry | None) -> set[Key]:
        nodes = [entry.view for entry in (old, new) if entry and isinstance(entry.view, Node)]
        if nodes:
            same = old is not None and new is not None and old.view == new.view
            return set() if same else set(self.jobs())
        return {entry.job for entry in (old, new) if entry and entry.job}


def ref_of(raw: Manifest) -> Ref:
    return Ref(raw["kind"], raw["metadata"].get("namespace", ""), raw["metadata"]["name"])


def _entry(raw: Manifest) -> Entry:
    meta, kind = raw["metadata"], raw["kind"]
    uid, version = meta["uid"], int(meta["resourceVersion"])
    namespace, job = meta.get("namespace", ""), (meta.get("labels") or {}).get(JOB, "")
    match kind:
        case "RLJob":
            return Entry(uid, version, (namespace, meta["name"]), job_of(raw))
        case "Node":
            return Entry(uid, version, None, node_of(raw))
        case "Pod":
            return Entry(uid, version, (namespace, job) if job else None, pod_of(raw))
        case "GPUCell":
            cell = cell_view(raw)
            return Entry(uid, version, (namespace, cell.spec.job if cell else job), thing_of(raw), cell)
        case _:
            return Entry(uid, version, (namespace, job) if job else None, thing_of(raw))
