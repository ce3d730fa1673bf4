"""Conditions, as on every Kubernetes object: one entry a type, the last transition, and a message that says what to do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidemill.api.model import Model


class Condition(Model):
    type: str = Field(description="What is said to be so, e.g. Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: str = Field(description="One word for programs.")
    message: str = Field("", description="For people: the object, what is wrong, what to do.")
    observed_generation: int = Field(0, description="metadata.generation of the spec this speaks of.")
    last_transition_time: str = Field("", description="When status last changed, RFC 3339.")
