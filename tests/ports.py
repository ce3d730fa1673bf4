"""A port for a server that a test starts."""

from __future__ import annotations

from tidemill.local.ports import free_ports


def free_port() -> int:
    return free_ports(1)[0]
