"""The waterlevel rule: which cell may leave rollout, and when."""

from __future__ import annotations

from tidemill.policy.tide import CellView, Tide


def next_to_train(tide: Tide) -> CellView | None:
    """The one cell that may leave rollout now, or None.

    A cell may leave when the others can serve every unfinished execution: w <= C_R - C_e (arXiv 2609.33848, Eq. 5).
    Cells leave one at a time (the one before has settled, or is late) and in order, so the training cells always form a prefix of those that
    may train. Right after a burst's end cells on their way back count by their grant; one that is late counts for nothing and is passed over.
    """
    fleet = tide.fleet
    candidate = fleet.next_in_order
    if not fleet.settled or candidate is None or tide.waterlevel > tide.rollout_capacity - candidate.capacity:
        return None
    return candidate


def core_stays(tide: Tide, groups_per_step: int) -> bool:
    """Whether the core keeps training over the end of a burst (Eq. 6).

    It does when the next step's groups are ready and the other cells carry every pending execution. `tide` counts as dispatched what the
    next burst dispatches at once: otherwise the core would stay although the rule above would not let it leave.
    """
    others = tide.standalone_capacity + sum(c.capacity for c in tide.cells[1:] if c.takes_part)
    return bool(tide.flip_order) and tide.ready_groups >= groups_per_step and tide.waterlevel <= others
