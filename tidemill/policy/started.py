"""Extension StartedOnly: the waterlevel counts executions that have started. Those that wait for a place go on waiting, and nobody is interrupted."""

from __future__ import annotations

from dataclasses import replace

from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


def seen(tide: Tide, outlook: Outlook) -> Tide:
    """At least one goes on counting while any is unfinished, so that there is always a cell left to serve it."""
    waiting = min(outlook.pending, tide.waterlevel - 1)
    return replace(tide, dispatched=tide.dispatched - waiting) if waiting > 0 else tide
