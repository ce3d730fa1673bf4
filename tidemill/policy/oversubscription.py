"""Extension Oversubscribe: a cell's capacity is the load at which its measured throughput is highest, not a fixed C_e."""

from __future__ import annotations

from dataclasses import replace

from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


def seen(tide: Tide, outlook: Outlook) -> Tide:
    factor = outlook.peak_load
    if factor <= 1:
        return tide
    cells = tuple(replace(c, capacity=int(c.capacity * factor)) for c in tide.cells)
    return replace(tide, cells=cells, standalone_capacity=int(tide.standalone_capacity * factor))
