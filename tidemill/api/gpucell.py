"""GPUCell: one cell of a job. The operator writes its desired role, its agent acknowledges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidemill.api.conditions import Condition
from tidemill.api.model import API_VERSION, Model
from tidemill.api.rljob import Metadata
from tidemill.wire.cell import CellKind, CellPhase, Role

Epoch = Annotated[int, Field(ge=0)]


class FlipStatus(Model):
    to: Role = Field(description="The role it flipped to.")
    epoch: Epoch = Field(description="Epoch of the grant.")
    seconds: float = Field(description="Duration of the flip.")
    phases: dict[str, float] = Field({}, description="Seconds of each phase.")
    calls_in_flight: int = Field(0, description="Answers that went on in another cell.")
    time: str = Field("", description="When it ended, RFC 3339.")


class GPUCellSpec(Model):
    job: str = Field(description="Name of the RLJob this cell belongs to.")
    ordinal: Annotated[int, Field(ge=0)] = Field(description="Place in the order in which cells leave rollout; 0 is the core.")
    kind: CellKind = Field(description="Core, Satellite or Standalone.")
    role: Role = Field(Role.ROLLOUT, description="Granted role; written by the operator.")
    epoch: Epoch = Field(0, description="Number of the grant; only grows.")
    pin: Role | None = Field(None, description="Keep the cell in this role, whatever the waterlevel.")
    cordon: bool = Field(False, description="Drain the cell and give it nothing new.")


class GPUCellStatus(Model):
    role: Role | None = Field(None, description="Acknowledged role.")
    epoch: Epoch = Field(0, description="Acknowledged epoch.")
    phase: CellPhase = Field(CellPhase.STARTING, description="What the cell is doing.")
    pods: tuple[str, ...] = Field((), description="Pods of the cell, rank 0 first.")
    endpoint: str = Field("", description="URL of the cell agent.")
    capacity: int = Field(0, description="Executions it serves at once.")
    unfinished_executions: int = Field(0, description="Executions it serves now.")
    policy_version: int = Field(-1, description="Verified weights in the engine; -1 before the first.")
    utilization: float | None = Field(None, description="Share of the last minute in which the GPUs were busy.")
    last_flip: FlipStatus | None = Field(None, description="The last change of role.")
    conditions: tuple[Condition, ...] = Field((), description="Ready, Failed, Cordoned.")


class GPUCell(Model):
    api_version: Literal["tidemill.dev/v1alpha1"] = Field(description=f"Always {API_VERSION}.")
    kind: Literal["GPUCell"] = Field(description="Always GPUCell.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: GPUCellSpec = Field(description="What the cell is to be.")
    status: GPUCellStatus = Field(GPUCellStatus(), description="What the cell is.")
