"""Extension Stay: satellites, not the core alone, keep training over the end of a burst when the next one has work for them."""

from __future__ import annotations

from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


def staying(tide: Tide, groups_per_step: int, outlook: Outlook) -> tuple[str, ...]:
    """The longest prefix of the training cells whose absence leaves room for every execution (as when the core stays, Eq. 6) and for each of
    which enough is ready to train that going and coming back would cost more than it brings.
    """
    if tide.ready_groups < groups_per_step:
        return ()
    kept: list[str] = []
    capacity = tide.standalone_capacity + sum(c.capacity for c in tide.cells if c.takes_part)
    for cell in tide.flip_order:
        capacity -= cell.capacity
        worth = outlook.backlog_seconds / (len(kept) + 1) > outlook.flip_seconds + outlook.return_seconds
        if cell.in_rollout or not cell.usable or tide.waterlevel > capacity or (kept and not worth):
            break
        kept.append(cell.name)
    return tuple(kept)
