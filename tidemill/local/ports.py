"""TCP ports of a local job's processes."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

FIRST_FREE = 10_000


LAST = 65_535


class PortTaken(Exception):
    """A port that was asked for is in use, or there is no such port."""


@dataclass(frozen=True, slots=True)
class CellPorts:
    agent: int
    engine: int
    trainer: int


@dataclass(frozen=True, slots=True)
class Ports:
    conductor: int
    gateways: tuple[int, ...]
    cells: tuple[CellPorts, ...]


def choose_ports(cells: int, base: int | None = None, gateways: int = 1) -> Ports:
    """Free ports, or those from `base` upwards.

    Raises:
        PortTaken: `base` is given and one of its ports is in use or does not exist, or there are too few free ones.
    """
    wanted = 1 + gateways + 3 * cells
    numbers = free_ports(wanted) if base is None else _from(base, wanted)
    it = iter(numbers)
    return Ports(next(it), tuple(next(it) for _ in range(gateways)), tuple(CellPorts(next(it), next(it), next(it)) for _ in range(cells)))


def free_ports(count: int) -> list[int]:
    """Below the ports that the kernel gives to outgoing connections: one of those may be gone before its process listens, seconds from now.

    Raises:
        PortTaken: there are too few.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = list(range(FIRST_FREE, first_outgoing))
    random.shuffle(candidates)  # two who look at once should not choose the same
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if not _taken(port):
            found.append(port)
    if len(found) < count:
        raise PortTaken(f"only {len(found)} of {count} ports are free between {FIRST_FREE} and {first_outgoing}: choose with --ports")
    return found


def _from(base: int, count: int) -> list[int]:
    if not 1 <= base <= LAST + 1 - count:
        raise PortTaken(f"--ports {base}: the job needs {count} ports from there; give a number from 1 to {LAST + 1 - count}, or leave it out")
    for port in range(base, base + count):
        if reason := _taken(port):
            raise PortTaken(f"port {port} is taken ({reason}); the job needs {base} to {base + count - 1}: give another --ports, or leave it out")
    return list(range(base, base + count))


def _taken(port: int) -> str:
    """Why nobody can listen there; empty when somebody can."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError) as cause:
        return str(cause)
    return ""
