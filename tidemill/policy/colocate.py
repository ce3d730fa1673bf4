"""The published baseline Colocate: all cells share both roles and change together, when no execution is left on them."""

from __future__ import annotations

from tidemill.policy.tide import CellView, Tide


def next_to_train(tide: Tide) -> tuple[CellView, ...]:
    """All cells at once, when the standalone pool and what is pinned to rollout can carry what is unfinished (w = 0 without them); else none.

    One that is late stays behind; without the core nobody leaves.
    """
    fleet = tide.fleet
    if not fleet.settled or fleet.next_in_order is None or any(not c.in_rollout for c in fleet.usable):
        return ()
    leaving = tuple(c for c in fleet.flip_order if c.takes_part)
    if tide.waterlevel > tide.standalone_capacity + fleet.serving_capacity - sum(c.capacity for c in leaving):
        return ()
    return leaving
