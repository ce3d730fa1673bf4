"""RLJobStatus: what the operator sees of a job. Recomputed from observation, never patched forward."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tidemill.api.conditions import Conditions
from tidemill.api.flip import JobFlip
from tidemill.api.model import Identifier, Model, Text

KEPT_FLIPS = 20


class JobPhase(StrEnum):
    PENDING = "Pending"  # nothing of it exists yet
    STARTING = "Starting"  # its processes are coming up
    RUNNING = "Running"
    PAUSED = "Paused"  # its processes run, but it cannot go on by itself
    SUSPENDING = "Suspending"  # work is being put away
    SUSPENDED = "Suspended"  # no pods; resuming continues at the same step
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"  # the manifest breaks a rule; nothing is created

    @property
    def terminal(self) -> bool:
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED)


class Limit(StrEnum):
    """What the job is waiting for most."""

    NOTHING = ""
    ROLLOUT = "Rollout"  # agents are at work; no cell can be spared
    TRAINING = "Training"  # groups are ready and wait for the trainer
    FLIPS = "Flips"  # cells are changing role
    PLACEMENT = "Placement"  # pods have no nodes yet


class Scores(Model):
    last: float | None = Field(None, description="Mean score of the last step.")
    best: float | None = Field(None, description="Largest mean score of a step.")


class RLJobStatus(Model):
    phase: JobPhase = Field(JobPhase.PENDING, description="Where the job stands. Succeeded and Failed are final.")
    conditions: Conditions = Field((), description="Ready, Progressing, Invalid, HostMemoryFits, Placed, Failed and others, with what to do.")
    observed_generation: int = Field(0, description="metadata.generation of the spec that this status speaks of.")
    step: int = Field(0, description="Committed optimizer steps.")
    progress: Identifier = Field("", description="Committed of all steps, e.g. 12/48.")
    burst: int = Field(0, description="Bursts begun.")
    policy_version: int = Field(-1, description="Last published weights; -1 before the first.")
    waterlevel: int = Field(0, description="Unfinished executions, w = d - f.")
    capacity: int = Field(0, description="C_R: executions that the cells in rollout serve at once.")
    water: Identifier = Field("", description="Unfinished executions against the capacity in rollout, e.g. 37/64.")
    limited_by: Limit = Field(Limit.NOTHING, description="What the job waits for most; empty: nothing.")
    cells_in_rollout: int = Field(0, description="Cells that serve.")
    cells_in_training: int = Field(0, description="Cells that train.")
    scores: Scores = Field(Scores(), description="Mean scores of steps.")
    eta: Identifier = Field("", description="Estimated time to the last step, from the steps so far, e.g. 3h20m.")
    staleness: int = Field(0, description="Largest staleness of a trained sample, in publications.")
    term: int = Field(0, description="Number of the operator's authority at the conductor; 0: it has none.")
    flips: Annotated[tuple[JobFlip, ...], Field(max_length=KEPT_FLIPS)] = Field((), description="The last 20 flips, the newest last.")
    last_flip_seconds: float | None = Field(None, description="Duration of the last flip of any cell.")
    start_time: Text = Field("", description="When the job started, RFC 3339.")
    completion_time: Text = Field("", description="When it ended, RFC 3339.")
