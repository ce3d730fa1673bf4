"""Conditions, as on every Kubernetes object: one entry a type, the last transition, and a message that says what to do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidemill.api.model import Identifier, LongText, Model, Text


class Condition(Model):
    type: Identifier = Field(description="What is said to be so, e.g. Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: Identifier = Field(description="One word for programs.")
    message: LongText = Field("", description="For people: the object, what is wrong, what to do.")
    observed_generation: int = Field(0, description="metadata.generation of the spec this speaks of.")
    last_transition_time: Text = Field("", description="When status last changed, RFC 3339.")


Conditions = Annotated[
    tuple[Condition, ...], Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
]
