"""How every API model behaves: camelCase outside, unknown fields refused, immutable, every field described."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "tidemill.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_default=True, protected_namespaces=(), allow_inf_nan=False
    )


# Everything has a bound: a cluster's API server sizes what its rules may cost by it, and nobody can store a megabyte in a name.
Identifier = Annotated[str, Field(max_length=253)]
Text = Annotated[str, Field(max_length=1024)]
LongText = Annotated[str, Field(max_length=4096)]
Pairs = Annotated[dict[Identifier, LongText], Field(max_length=64)]


def _as_text(value: object) -> object:
    """YAML reads `cpu: 1` as a number; Kubernetes takes both, but no fraction that is not text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
Quantity = Annotated[
    str,
    BeforeValidator(_as_text),
    # The pattern twice: pydantic does not show one behind a validator.
    Field(pattern=_QUANTITY, max_length=32, json_schema_extra={"x-kubernetes-int-or-string": True, "minimum": 0, "pattern": _QUANTITY}),
]
"""A Kubernetes quantity, e.g. `500m` or `6Gi`."""

_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {f"{p}i": 1024.0**n for n, p in enumerate("KMGTP", start=1)}


def amount(quantity: str) -> float:
    """The plain number a quantity stands for: cores, or bytes."""
    digits = quantity.rstrip("mkMGTPKi")
    return float(digits) * _FACTORS[quantity[len(digits) :]]
