"""Extension GainGate: another cell trains only when that saves more time than its flip and its return cost."""

from __future__ import annotations

from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


def worth_it(tide: Tide, outlook: Outlook) -> bool:
    """With m cells the D seconds of training that are due take D / m. One more joins after its flip F, so that m t + (t - F) = D, and
    the rest takes (D + F) / (m + 1). The difference has to exceed R, by which the cell's return delays the next burst. The first cell always may:
    without it nothing is trained.
    """
    training = sum(not c.in_rollout for c in tide.usable_cells)
    if training == 0:
        return True
    due, flip = outlook.due_seconds, outlook.flip_seconds
    return due / training - (due + flip) / (training + 1) > outlook.return_seconds
