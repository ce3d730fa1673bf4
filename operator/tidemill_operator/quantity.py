"""Kubernetes quantities as other programs write them: all suffixes, exponents too."""

from __future__ import annotations

import re

_FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_FACTORS |= {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", start=1)}
_QUANTITY = re.compile(r"^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)$")


def quantity(text: str) -> float:
    """0 for what is none: a node that reports nonsense offers nothing."""
    match = _QUANTITY.match(str(text))
    if match is None or match[2] not in _FACTORS:
        return 0.0
    return float(match[1]) * _FACTORS[match[2]]
