"""TCP ports of a local job's processes."""

from __future__ import annotations

import socket
from dataclasses import dataclass


class PortTaken(Exception):
    """A port that was asked for is in use."""


@dataclass(frozen=True, slots=True)
class CellPorts:
    agent: int
    engine: int
    trainer: int


@dataclass(frozen=True, slots=True)
class Ports:
    conductor: int
    gateway: int
    cells: tuple[CellPorts, ...]


def choose_ports(cells: int, base: int | None = None) -> Ports:
    """Free ports, or those from `base` upwards.

    Raises:
        PortTaken: `base` is given and one of its ports is in use.
    """
    wanted = 2 + 3 * cells
    numbers = _free(wanted) if base is None else _from(base, wanted)
    it = iter(numbers)
    return Ports(next(it), next(it), tuple(CellPorts(next(it), next(it), next(it)) for _ in range(cells)))


def _free(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]  # all held at once, so that no two are equal
    numbers = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return numbers


def _from(base: int, count: int) -> list[int]:
    for port in range(base, base + count):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError) as cause:
            raise PortTaken(
                f"port {port} is taken ({cause}); the job needs {base} to {base + count - 1}: give another --ports, or leave it out"
            ) from cause
    return list(range(base, base + count))
