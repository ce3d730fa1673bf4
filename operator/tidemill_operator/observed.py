"""How one job looks in the caches: only what decisions need, immutable, so that a plan is a function of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidemill.api.gpucell import GPUCellSpec
from tidemill.api.rljob import RLJob
from tidemill.wire.cell import Flip
from tidemill.wire.conductor import Tide
from tidemill_operator.actions import Ref
from tidemill_operator.names import Manifest, gpucell
from tidemill_operator.ownership import Managed

SILENCE_SECONDS = 45.0
"""A conductor answers a long poll within 20 s; two may get lost."""


@dataclass(frozen=True, slots=True)
class Job:
    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    model: RLJob | None  # None when `errors` says why
    errors: tuple[str, ...]
    status: Manifest
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    deleting: bool = False

    @property
    def ref(self) -> Ref:
        return Ref("RLJob", self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    init: bool
    ready: bool
    restarts: int
    waiting: str = ""  # reason
    message: str = ""
    last_exit: str = ""  # reason of the last termination, e.g. OOMKilled
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    component: str
    cell: str
    rank: int
    phase: str
    created: float
    node: str = ""
    ready: bool = False
    unready_reason: str = ""  # why the kubelet calls it unready
    unschedulable: str = ""  # the scheduler's words; empty when it has a node or nobody has looked yet
    gated: bool = False  # held back by a queue, which places the cell as a whole
    deleting: bool = False
    disrupted: str = ""  # reason of DisruptionTarget
    owner: str = ""  # uid of what controls it: a GPUCell, a StatefulSet; of a sandbox, the conductor's pod
    containers: tuple[Container, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    ready: bool
    since: float  # when that last changed
    memory_bytes: float
    gpus: int


@dataclass(frozen=True, slots=True)
class Cell:
    name: str  # cell-0
    uid: str
    resource_version: str
    generation: int
    spec: GPUCellSpec
    status: Manifest
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Thing:
    """Any other object of the job."""

    ref: Ref
    uid: str
    applied: str  # digest of what was last applied
    deleting: bool = False
    cluster_ip: str = ""
    owner: str = ""  # uid of the RLJob it belongs to; empty for what belongs to none, or to something else
    fields: Managed | None = None  # None: not known, or nobody's business
    addresses: dict[str, str] = field(default_factory=dict)  # of a job's ConfigMap


@dataclass(frozen=True, slots=True)
class Reading:
    """What the job's conductor last said."""

    tide: Tide | None = None
    heard: float = 0.0  # when it last answered
    error: str = ""  # why it does not
    suspended: bool = False  # it has put everything away: its pods may be deleted
    flips: tuple[Flip, ...] = ()  # of all readings lately: a tide has only each cell's last
    since: float = 0.0  # when this process began to listen

    def awaited(self, now: float) -> bool:
        """Whether this process is too young to say that the conductor is silent. What was known before it came stands meanwhile."""
        return self.tide is None and now - self.since < SILENCE_SECONDS

    def fresh(self, now: float) -> bool:
        """Whether it answers at present."""
        return self.tide is not None and now - self.heard < SILENCE_SECONDS


@dataclass(frozen=True, slots=True)
class BackOff:
    """A cell, or a whole job before it began, that gave its places back."""

    times: int
    until: float


@dataclass(frozen=True, slots=True)
class Observed:
    job: Job
    cells: tuple[Cell, ...] = ()
    pods: tuple[Pod, ...] = ()
    left: tuple[Pod, ...] = ()  # pods of an earlier job of this name, or of a cell that was made anew: they hold their names until they are gone
    things: dict[Ref, Thing] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()
    reading: Reading = field(default_factory=Reading)
    back_offs: dict[str, BackOff] = field(default_factory=dict)  # by cell; "" for the job as a whole
    trust: str = ""  # trust.json; empty until the API server's keys are known
    gangs: bool = False  # whether the cluster places groups of pods as a whole
    dry_run: str | None = None  # what the API server said to the job's pods; "" when it takes them, None before it was asked
    unmoved: frozenset[str] = frozenset()  # uids of things of which some fields do not become ours, however often they are applied
    applied: dict[str, float] = field(default_factory=dict)  # when a thing that is there was last applied again, by uid
    trouble: str = ""  # why the last pass could not write what it wanted
    status_written: float = 0.0  # when the job's status was last written
    cells_written: dict[str, float] = field(default_factory=dict)  # when a cell's was, by uid

    def thing(self, kind: str, name: str) -> Thing | None:
        return self.things.get(Ref(kind, self.job.namespace, name))

    def of(self, component: str) -> tuple[Pod, ...]:
        return tuple(p for p in self.pods if p.component == component)


def own(observed: Observed) -> Observed:
    """Without what is left of an earlier job of the same name, or is labelled as ours and is not: neither is adopted, nor does it count as made."""
    job = observed.job
    things = {ref: thing for ref, thing in observed.things.items() if thing.owner == job.uid}
    cells = tuple(c for c in observed.cells if Ref("GPUCell", job.namespace, gpucell(job.name, c.name)) in things)
    owners = {thing.uid for thing in things.values()}
    owners |= {p.uid for p in observed.pods if p.owner in owners}  # sandboxes belong to the conductor's pod
    pods = tuple(p for p in observed.pods if p.owner in owners)
    left = tuple(p for p in observed.pods if p.owner not in owners)
    return replace(observed, things=things, cells=cells, pods=pods, left=left)
