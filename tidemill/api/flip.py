"""A change of role as it happened, in the status of its cell and of the job: events expire, this stays."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidemill.api.model import Identifier, Model, Text
from tidemill.wire.cell import Role

Epoch = Annotated[int, Field(ge=0, le=2**53 - 1)]


class FlipStatus(Model):
    to: Role = Field(description="The role it flipped to.")
    epoch: Epoch = Field(description="Epoch of the grant.")
    seconds: float = Field(description="Duration of the flip.")
    phases: Annotated[dict[Identifier, float], Field(max_length=32)] = Field({}, description="Seconds of each phase.")
    calls_in_flight: int = Field(0, description="Answers that went on in another cell.")
    time: Text = Field("", description="When it ended, RFC 3339.")


class JobFlip(FlipStatus):
    cell: Identifier = Field(description="The cell that flipped, e.g. cell-0.")
