"""Which CPU cores a cell may use. A cell stands in for a set of GPUs, so cells that share cores do not measure anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CoreShares:
    """Cores of each cell, in the order of the cells. `shared`: there are fewer cores than cells."""

    shares: tuple[tuple[int, ...], ...]
    shared: bool


def share_cores(cells: int, cores: tuple[int, ...]) -> CoreShares:
    """Deal `cores` out evenly and in runs of neighbours; what does not divide stays free for gateway, conductor and harnesses."""
    each = len(cores) // cells
    if each == 0:
        return CoreShares(tuple(cores for _ in range(cells)), shared=True)
    return CoreShares(tuple(cores[i * each : (i + 1) * each] for i in range(cells)), shared=False)


def gpus_of(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs of this machine."""
    return len(list(devices.glob("nvidia[0-9]*")))


def share_gpus(cells: int, gpus: int) -> tuple[tuple[int, ...], ...]:
    """GPU indices of each cell; empty tuples on a machine without GPUs, or with fewer than cells."""
    each = gpus // cells
    return tuple(tuple(range(i * each, (i + 1) * each)) for i in range(cells))
