"""Extension TrainingCells: no more cells train than are needed to end this burst before the next one could begin."""

from __future__ import annotations

from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


def needed(tide: Tide, outlook: Outlook) -> bool:
    """Whether the m cells that train now would end the burst's training after the groups of the next burst's first step are ready."""
    training = sum(not c.in_rollout for c in tide.usable_cells)
    return training == 0 or outlook.due_seconds / training > outlook.next_burst_seconds
