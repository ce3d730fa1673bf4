"""Colours and names that mean the same on every board."""

from __future__ import annotations

from helm.dashboards.panel import State
from helm.dashboards.queries import ROLE_NAMES

ROLES = tuple(
    State(number, name, color) for number, (name, color) in enumerate(zip(ROLE_NAMES, ("blue", "orange", "purple", "#8e8e8e", "red"), strict=True), 1)
)
PHASES = tuple(
    State(number, name, color)
    for number, (name, color) in enumerate(
        (("Starting", "#8e8e8e"), ("Running", "green"), ("Paused", "orange"), ("Succeeded", "blue"), ("Failed", "red")), 1
    )
)


def phase_of_jobs(where: str, by: str) -> str:
    """A number for the phase of each job; `PHASES` says which."""
    parts = (f'{state.value} * (tidemill_job_phase{{{where}, phase="{state.text}"}} == 1)' for state in PHASES)
    return f"max by ({by}) ({' or '.join(parts)})"
