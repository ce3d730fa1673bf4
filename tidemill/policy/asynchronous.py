"""The published baseline Async: a fixed split. The first cells train from start to end, the others never do."""

from __future__ import annotations

from tidemill.policy.tide import CellView, Tide


def next_to_train(tide: Tide, training_cells: int) -> tuple[CellView, ...]:
    """Those of the fixed split that are not yet in training. Nobody waits for another, so one that is late may be told as well."""
    return tuple(c for c in tide.flip_order[:training_cells] if c.in_rollout and c.usable)
