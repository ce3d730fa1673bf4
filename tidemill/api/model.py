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


def _as_text(value: object) -> object:
    """YAML reads `cpu: 1` as a number; Kubernetes takes both."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Quantity = Annotated[str, BeforeValidator(_as_text), Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$")]
"""A Kubernetes quantity, e.g. `500m` or `6Gi`."""

_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {f"{p}i": 1024.0**n for n, p in enumerate("KMGTP", start=1)}


def amount(quantity: str) -> float:
    """The plain number a quantity stands for: cores, or bytes."""
    digits = quantity.rstrip("mkMGTPKi")
    return float(digits) * _FACTORS[quantity[len(digits) :]]
