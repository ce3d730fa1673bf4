"""Extension RemainingWork: executions that are predicted to end before a flip is over do not hold a cell back."""

from __future__ import annotations

from dataclasses import replace

from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


def seen(tide: Tide, outlook: Outlook) -> Tide:
    """At least one execution goes on counting while any is unfinished, so that there is always a cell left to serve the last ones."""
    ending = min(outlook.ending_soon, tide.waterlevel - 1)
    return replace(tide, terminated=tide.terminated + ending) if ending > 0 else tide
