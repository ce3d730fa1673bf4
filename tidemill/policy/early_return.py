"""Extension EarlyReturn: a satellite that has nothing to train goes back in the middle of a burst when executions wait for a place."""

from __future__ import annotations

from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


def returning(tide: Tide, outlook: Outlook) -> tuple[str, ...]:
    """The last satellite of those that train, so that they stay a prefix of the order; the core stays, because it holds the sum.

    Not while a cell flips, and not when the next group is ready sooner than the cell could have gone and come back.
    """
    if not outlook.pending or outlook.backlog_seconds > 0 or not tide.fleet.settled:
        return ()
    if outlook.next_ready_seconds <= outlook.flip_seconds + outlook.return_seconds:
        return ()
    training = [c for c in tide.flip_order[1:] if c.usable and not c.in_rollout]
    return (training[-1].name,) if training and training[-1].name in outlook.idle_cells else ()
