"""Times as Kubernetes writes them, and as numbers."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(now: float) -> str:
    """With the microseconds that leases and events have."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(stamp: str | None) -> float:
    """Unix seconds; 0 for no time."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
