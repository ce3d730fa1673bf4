"""GPUCell: one cell of a job. The operator writes its desired role, its agent acknowledges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidemill.api.conditions import Conditions
from tidemill.api.flip import Epoch, FlipStatus
from tidemill.api.metadata import CellMetadata, JobName
from tidemill.api.model import API_VERSION, Identifier, Model, Text
from tidemill.wire.cell import CellKind, CellPhase, Role


class GPUCellSpec(Model):
    job: JobName = Field(description="Name of the RLJob this cell belongs to.")
    ordinal: Annotated[int, Field(ge=0, le=1023)] = Field(description="Place in the order in which cells leave rollout; 0 is the core.")
    kind: CellKind = Field(description="Core, Satellite or Standalone.")
    role: Role = Field(Role.ROLLOUT, description="Granted role; written by the operator.")
    epoch: Epoch = Field(0, description="Number of the grant; only grows.")
    pin: Role | None = Field(None, description="Keep the cell in this role, whatever the waterlevel.")
    cordon: bool = Field(False, description="Drain the cell and give it nothing new.")


class GPUCellStatus(Model):
    role: Role | None = Field(None, description="Acknowledged role.")
    epoch: Epoch = Field(0, description="Acknowledged epoch.")
    phase: CellPhase = Field(CellPhase.STARTING, description="What the cell is doing.")
    observed_generation: int = Field(0, description="metadata.generation of the spec that this status speaks of.")
    pods: Annotated[tuple[Identifier, ...], Field(max_length=1024)] = Field((), description="Pods of the cell, rank 0 first.")
    node: Identifier = Field("", description="Node of rank 0, and how many more there are, e.g. gpu-7 +3.")
    endpoint: Text = Field("", description="URL of the cell agent.")
    capacity: int = Field(0, description="Executions it serves at once.")
    unfinished_executions: int = Field(0, description="Calls that it serves now, of one execution each; may be a minute old.")
    policy_version: int = Field(-1, description="Verified weights in the engine; -1 before the first.")
    utilization: float | None = Field(None, description="Share of the last minute in which the GPUs were busy.")
    last_flip: FlipStatus | None = Field(None, description="The last change of role.")
    last_flip_text: Identifier = Field("", description="The last change of role in words, e.g. Training in 8.5 s.")
    conditions: Conditions = Field((), description="Ready, Failed, Cordoned and others, with what to do.")


class GPUCell(Model):
    """One cell of an RLJob: GPUs of one or more nodes that change role together."""

    api_version: Literal["tidemill.dev/v1alpha1"] = Field(description=f"Always {API_VERSION}.")
    kind: Literal["GPUCell"] = Field(description="Always GPUCell.")
    metadata: CellMetadata = Field(description="Name and labels.")
    spec: GPUCellSpec = Field(description="What the cell is to be.")
    status: GPUCellStatus = Field(GPUCellStatus(), description="What the cell is.")
