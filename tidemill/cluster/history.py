"""What happened in a job on a cluster: from its conductor while that runs, from what the operator kept afterwards."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass

import aiohttp
import msgspec

from tidemill.api.model import GROUP
from tidemill.api.status import JobPhase
from tidemill.cluster.api import CONFIG_MAPS, Cluster
from tidemill.cluster.forwarding import forward
from tidemill.cluster.objects import Job
from tidemill.cluster.trouble import ClusterTrouble, NotThere, Unanswered
from tidemill.telemetry.events import AnyEvent, FlipEnded, JobStarted, RoleAcknowledged
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.http import WireError

PORT = 7000
TOKEN_SECONDS = 600
"""The shortest that an API server gives out."""


@dataclass(frozen=True, slots=True)
class History:
    events: tuple[AnyEvent, ...]
    origin: str  # for people
    whole: bool = True


async def history_of(cluster: Cluster, job: Job) -> History:
    """Raises `ClusterTrouble`, which says what is left where the events are out of reach."""
    if job.ended and (kept := await _kept(cluster, job)) is not None:
        return kept
    try:
        return History(decoded(await _asked(cluster, job.name)), f"conductor {job.name}-conductor-0")
    except (NotThere, Unanswered) as cause:
        raise NotThere(what_is_left(job, str(cause))) from cause


def decoded(lines: bytes) -> tuple[AnyEvent, ...]:
    try:
        return tuple(msgspec.json.Decoder(AnyEvent).decode_lines(lines))
    except msgspec.MsgspecError as cause:
        raise ClusterTrouble(f"the job's events hold what this tidemill does not know ({cause}); install the version that the job runs") from cause


def mended(events: tuple[AnyEvent, ...], job: Job) -> History:
    """Kept events begin with the job's start, unless the oldest did not fit: then the story begins where they do."""
    origin = f"ConfigMap {job.name}-history"
    if not events or isinstance(events[0], JobStarted):
        return History(events, origin)
    cells = sorted({e.cell for e in events if isinstance(e, RoleAcknowledged | FlipEnded)})
    start = JobStarted(
        time=events[0].time, job=job.name, mode=job.mode, steps=job.steps, cells=tuple(cells), capacities=(0,) * len(cells), cores_shared=False
    )
    return History((start, *events), origin, whole=False)


def what_is_left(job: Job, reason: str) -> str:
    claim = f"work-{job.name}-conductor-0"
    match job.status.phase:
        case JobPhase.SUSPENDED | JobPhase.SUSPENDING:
            return f"rljob {job.name} is suspended, so nobody tells its events; resume it, or mount the volume claim {claim}: metrics.jsonl has them"
        case phase if phase.terminal:
            return (
                f"rljob {job.name} has ended and its events were not kept, because its conductor did not answer then. What is left: "
                f"scores and the last flips in `tidemill status {job.name}`, and metrics.jsonl on the volume claim {claim} until the job is deleted"
            )
        case phase:
            return f"the conductor of rljob {job.name} cannot be asked ({reason}); the job is {phase.value}, see `tidemill status {job.name}`"


async def _kept(cluster: Cluster, job: Job) -> History | None:
    try:
        found = await cluster.get(CONFIG_MAPS, f"{job.name}-history")
    except NotThere:
        return None
    lines = gzip.decompress(base64.b64decode(found["binaryData"]["metrics.jsonl.gz"]))
    return mended(decoded(lines), job)


async def _asked(cluster: Cluster, job: str) -> bytes:
    """All events, from the conductor. The user becomes the conductor's own account towards it, for the length of a token."""
    token = await cluster.token(f"{job}-conductor", GROUP, TOKEN_SECONDS)
    async with (
        forward(cluster, f"{job}-conductor-0", PORT) as way,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(way.socket))) as session,
    ):
        conductor = ConductorClient("http://conductor", token, session)
        lines = b""
        try:
            while piece := await conductor.events(len(lines), wait_seconds=0.0):
                lines += piece
        except WireError as cause:
            raise way.trouble or Unanswered(f"conductor of {job}: {cause}") from cause
    return lines
