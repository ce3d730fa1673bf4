"""What of the machine the children of this cell may use: cores and GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Devices:
    cores: tuple[int, ...] = ()  # empty: the scheduler chooses
    gpus: tuple[str, ...] = ()  # as CUDA_VISIBLE_DEVICES names them: index, GPU-... or MIG-...
    threads: int = 0  # of one matrix product; 0: as many as cores

    @property
    def environment(self) -> dict[str, str]:
        """One compute thread a core: more would only wait for each other. A thread that waits sleeps, because it may wait for one that is not
        running. A cell without GPUs sees none; those of another count as the driver counts them, whose metrics are told."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus), "OMP_WAIT_POLICY": "PASSIVE"}
        visible |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if self.gpus else {}
        threads = self.threads or len(self.cores)
        return visible | ({"OMP_NUM_THREADS": str(threads)} if threads else {})


def cores(text: str) -> tuple[int, ...]:
    """`"0,2"` as cores. Raises ValueError that says what is wrong."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError as cause:
        raise ValueError(f"{text!r} is not a list of core numbers; write them with commas between, e.g. 0,1") from cause


def gpus(text: str) -> tuple[str, ...]:
    """`"0,1"` as GPUs."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
