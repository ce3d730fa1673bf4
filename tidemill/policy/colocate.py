"""The published baseline Colocate: all cells share both roles and change together, when no execution is left on them."""

from __future__ import annotations

from tidemill.policy.tide import CellView, Tide


def next_to_train(tide: Tide) -> tuple[CellView, ...]:
    """All cells at once, when the standalone pool can carry what is unfinished (w = 0 without one); else none."""
    if any(not c.in_rollout or not c.settled for c in tide.usable_cells) or tide.waterlevel > tide.standalone_capacity:
        return ()
    return tide.usable_cells
