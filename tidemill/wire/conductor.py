"""Messages of the conductor: the tide, authority and grants, cells, leases of micro-steps, steps."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tidemill.policy.outlook import Outlook
from tidemill.trajectory.sequence import Sequence
from tidemill.wire.cell import CellState, Role
from tidemill.wire.gateway import Turns
from tidemill.wire.http import Client
from tidemill.wire.trainer import Nothing


class Grant(msgspec.Struct, frozen=True):
    """The conductor's word on a cell's role. A new one has a larger epoch; nothing else changes it."""

    cell: str
    role: Role
    epoch: int
    destinations: tuple[str, ...] = ()


class CellTide(msgspec.Struct, frozen=True):
    """A cell as the conductor sees it: what was granted, and what its agent last reported (None before it ever did)."""

    cell: str
    ordinal: int
    capacity: int
    granted_role: Role
    granted_epoch: int
    state: CellState | None = None
    standalone: bool = False
    usable: bool = True  # False: failed, silent, leaving or cordoned; it serves nothing and is granted nothing
    settled: bool = False  # the granted role and epoch are acknowledged and in effect
    pinned: Role | None = None
    cordoned: bool = False
    late: bool = False  # it should have settled by now: in rollout it counts for nothing until it does, and nobody waits for it


class Constraints(msgspec.Struct, frozen=True):
    """`PUT /v1/cells/{cell}/constraints`: what a person wants of one cell, until the next such call. Answered by the cell's grant.

    Pinned to Rollout it never trains, and returns at once when it does. Pinned to Training it leaves before all other satellites, when the
    others carry the load, and returns at the end of each burst like they do. Cordoned it serves nothing: from training it returns, then its
    calls go on elsewhere.
    """

    term: int
    pin: Role | None = None
    cordon: bool = False


class JobPhase(StrEnum):
    STARTING = "Starting"
    RUNNING = "Running"
    PAUSED = "Paused"  # a condition holds it back, see `condition`
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Tide(msgspec.Struct, frozen=True):
    """`GET /v1/tide?after=N`: one reading of the job."""

    sequence: int
    job: str
    mode: str
    phase: JobPhase
    step: int  # committed optimizer steps
    steps: int  # of the whole job
    burst: int  # from 1; 0 outside of bursts, where only evaluations are dispatched
    policy_version: int
    dispatched: int  # d, executions
    started: int  # p
    terminated: int  # f
    ready_groups: int
    staleness_max: int
    cells: tuple[CellTide, ...]
    controller: str = "conductor"  # who decides flips now
    term: int = 0
    core_url: str = ""  # of the core's trainer, from which weights of `policy_version` are pulled
    weights_digest: str = ""  # of the published weights
    mean_score: float | None = None  # of the last committed step
    condition: str = ""
    groups_due: int = 0  # groups this burst still has to train, whether ready or not
    ended: str = ""  # why the job has ended; empty while it goes on
    suspended: bool = False  # nothing is dispatched and nothing is leased until it is resumed
    extensions: tuple[str, ...] = ()  # of the published rule that are on
    outlook: Outlook | None = None  # what they ask for beyond the counters; None when none is on

    @property
    def waterlevel(self) -> int:
        """w = d - f."""
        return self.dispatched - self.terminated


class Authority(msgspec.Struct, frozen=True):
    """`POST /v1/authority`: take (term 0) or renew the controller's term."""

    holder: str
    term: int = 0


class Term(msgspec.Struct, frozen=True):
    holder: str
    term: int
    expires_seconds: float


class GrantRequest(msgspec.Struct, frozen=True):
    """`POST /v1/grants`: the controller asks for a role; answered by a `Grant` or 409 with the reason."""

    cell: str
    role: Role
    term: int
    tide: int  # sequence number of the reading the decision rests on


class SettingsChange(msgspec.Struct, frozen=True):
    """`PUT /v1/settings`: what of a job may change while it runs. None leaves a value as it is; a job that has ended does not begin again."""

    term: int
    steps: int | None = None  # not below what is committed, or begun in the present burst
    standalone_replicas: int | None = None  # more: cells in rollout, epoch 1. Fewer: the last ones are cordoned and forgotten
    call_seconds: float | None = None  # of executions that start from now on, as the next two
    execution_seconds: float | None = None
    group_seconds: float | None = None
    drop_at_group_timeout: bool | None = None
    extensions: tuple[str, ...] | None = None  # all that are on from now on


class Suspend(msgspec.Struct, frozen=True):
    """`POST /v1/suspend`: stop dispatching and leasing, end the harnesses (their executions are queued again). `resume` takes it back."""

    term: int
    resume: bool = False


class Suspended(msgspec.Struct, frozen=True):
    """The answer once the store has all that can be kept: every process of the job may be deleted then."""

    step: int  # committed
    policy_version: int
    queued_executions: int  # that begin anew when the job is resumed


class MicroStep(msgspec.Struct, frozen=True):
    """One leased unit of forward-backward work: some sequences of one group."""

    id: str
    lease: str  # names this handing-out; a requeued micro-step gets a new one
    step: int
    index: int  # order in which a deterministic sum adds
    group: int
    sequences: tuple[Sequence, ...]


class LeaseRequest(msgspec.Struct, frozen=True):
    """`POST /v1/leases`: what is there to do for this trainer? Long poll."""

    cell: str
    epoch: int
    incarnation: str  # a new one frees what the former held
    max: int = 1
    checkpoint_step: int = -1  # core only: steps in the weights it holds
    wait_seconds: float = 5.0
    holding: tuple[str, ...] | None = None  # leases it holds, offered sums included: others handed to it got lost on the way and are freed


class Work(StrEnum):
    COMPUTE = "Compute"  # `micro_steps` to compute
    WAIT = "Wait"  # nothing now: hand over what is summed, ask again
    APPLY = "Apply"  # core only: every micro-step of `step` is counted, update the weights and report `applied`
    PUBLISH = "Publish"  # core only: serve the present weights as `version`, then report `published`
    OVER = "Over"  # the grant has ended


class LeaseReply(msgspec.Struct, frozen=True):
    work: Work
    step: int = 0
    version: int = 0
    micro_steps: tuple[MicroStep, ...] = ()
    lease_seconds: float = 600.0
    closed_seconds: float = 0.0  # of the time that the question waited, those in which the step took no more groups
    count: int = -1  # Apply: how many micro-steps the step has, so that the core can check that it holds them all; -1: not said


class LeaseIds(msgspec.Struct, frozen=True):
    """Body of `POST /v1/leases/return` and `/v1/leases/renew`."""

    cell: str
    leases: tuple[str, ...]


class Contribution(msgspec.Struct, frozen=True):
    """`POST /v1/steps/{step}/contributions`, by the core once a sum is completely staged: all of these are counted together, or (409) none."""

    cell: str
    epoch: int
    leases: tuple[str, ...]
    core_incarnation: str = ""  # of the trainer that holds the sum; one that has been replaced is refused


class Applied(msgspec.Struct, frozen=True):
    """`POST /v1/steps/{step}/applied`, by the core once the checkpoint after this step is durable. Idempotent."""

    checkpoint: str  # folder, relative to the job's checkpoints
    digest: str  # of the weights after the step
    statistics: dict[str, float]  # loss, gradient norm, ... for people and metrics


class Published(msgspec.Struct, frozen=True):
    """`POST /v1/publications`, by the core: version is readable from it. Idempotent."""

    version: int
    step: int
    digest: str


class TrainingState(msgspec.Struct, frozen=True):
    """`GET /v1/training`: from where the core starts."""

    committed_step: int
    checkpoint: str  # folder of that step, "" before the first
    policy_version: int
    published_step: int  # optimizer steps in the weights of `policy_version`
    digest: str


class ExecutionView(msgspec.Struct, frozen=True):
    id: str
    group: int
    task: str
    state: str
    attempt: int
    age_seconds: float
    score: float | None = None
    reason: str = ""


class ConductorClient(Client):
    async def tide(self, after: int = -1, wait_seconds: float = 20.0) -> Tide:
        query = {"after": str(after), "wait": f"{wait_seconds:g}"}
        return await self.call("GET", "/v1/tide", Tide, query=query, deadline_seconds=wait_seconds + 10.0)

    async def authority(self, request: Authority) -> Term:
        return await self.call("POST", "/v1/authority", Term, request)

    async def request_grant(self, request: GrantRequest) -> Grant:
        return await self.call("POST", "/v1/grants", Grant, request)

    async def constrain(self, cell: str, constraints: Constraints) -> Grant:
        return await self.call("PUT", f"/v1/cells/{cell}/constraints", Grant, constraints)

    async def change_settings(self, change: SettingsChange) -> Nothing:
        return await self.call("PUT", "/v1/settings", Nothing, change)

    async def suspend(self, order: Suspend, deadline_seconds: float = 60.0) -> Suspended:
        return await self.call("POST", "/v1/suspend", Suspended, order, deadline_seconds=deadline_seconds)

    async def events(self, after: int = 0, wait_seconds: float = 20.0) -> bytes:
        """Whole lines of the job's events from byte `after` on, some MiB at most; empty when none came in time. The next begins after them."""
        query = {"after": str(after), "wait": f"{wait_seconds:g}"}
        return await self.fetch("/v1/events", query, deadline_seconds=wait_seconds + 30.0)

    async def grants(self) -> tuple[Grant, ...]:
        return await self.call("GET", "/v1/grants", tuple[Grant, ...])

    async def report_cell(self, state: CellState) -> Grant:
        """The answer is the cell's current grant, so that an agent that missed an order learns it here."""
        return await self.call("POST", f"/v1/cells/{state.cell}/state", Grant, state)

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        return await self.call("POST", "/v1/leases", LeaseReply, request, deadline_seconds=request.wait_seconds + 10.0)

    async def return_leases(self, ids: LeaseIds) -> Nothing:
        return await self.call("POST", "/v1/leases/return", Nothing, ids)

    async def renew_leases(self, ids: LeaseIds) -> Nothing:
        return await self.call("POST", "/v1/leases/renew", Nothing, ids)

    async def contribute(self, step: int, contribution: Contribution) -> Nothing:
        return await self.call("POST", f"/v1/steps/{step}/contributions", Nothing, contribution)

    async def applied(self, step: int, applied: Applied) -> Nothing:
        return await self.call("POST", f"/v1/steps/{step}/applied", Nothing, applied)

    async def published(self, published: Published) -> Nothing:
        return await self.call("POST", "/v1/publications", Nothing, published)

    async def training(self) -> TrainingState:
        return await self.call("GET", "/v1/training", TrainingState)

    async def turns(self, turns: Turns) -> Nothing:
        return await self.call("POST", f"/v1/executions/{turns.execution}/turns", Nothing, turns, deadline_seconds=30.0)

    async def executions(self) -> tuple[ExecutionView, ...]:
        return await self.call("GET", "/v1/executions", tuple[ExecutionView, ...])
