"""What goes beyond the published rule, each by a name that `spec.schedule.extensions` takes, and how they are put together.

An extension changes the reading that the published rule sees (`oversubscription`, `remaining`, `started`), refuses a flip that the rule
allows (`gain`, `training_cells`), or adds a way back or a way to stay (`early_return`, `stay`). They apply to mode Elastic alone: the
baselines stay what they are. With no extensions every function here is the published rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidemill.policy import decide, early_return, gain, oversubscription, remaining, started, stay, training_cells
from tidemill.policy.decide import Mode
from tidemill.policy.outlook import Outlook
from tidemill.policy.tide import Tide


class Extension(StrEnum):
    GAIN_GATE = "GainGate"
    REMAINING_WORK = "RemainingWork"
    STARTED_ONLY = "StartedOnly"
    OVERSUBSCRIBE = "Oversubscribe"
    TRAINING_CELLS = "TrainingCells"
    EARLY_RETURN = "EarlyReturn"
    STAY = "Stay"


@dataclass(frozen=True, slots=True)
class Rules:
    """The job's mode and what is switched on."""

    mode: Mode
    async_training_cells: int = 1
    extensions: frozenset[Extension] = frozenset()

    @property
    def extended(self) -> bool:
        return self.mode is Mode.ELASTIC and bool(self.extensions)


def leaving(rules: Rules, tide: Tide, outlook: Outlook | None) -> tuple[str, ...]:
    """Cells that should be granted Training now. `outlook` may be None when nothing is switched on."""
    if outlook is None or not rules.extended:
        return decide.to_train(rules.mode, tide, rules.async_training_cells)
    names = decide.to_train(rules.mode, seen(rules, tide, outlook), rules.async_training_cells)
    if Extension.GAIN_GATE in rules.extensions and names and not gain.worth_it(tide, outlook):
        return ()
    if Extension.TRAINING_CELLS in rules.extensions and names and not training_cells.needed(tide, outlook):
        return ()
    return names


def returning(rules: Rules, tide: Tide, outlook: Outlook | None) -> tuple[str, ...]:
    """Cells that go back to rollout in the middle of a burst. The published rule knows no such thing."""
    if outlook is None or not rules.extended or Extension.EARLY_RETURN not in rules.extensions:
        return ()
    return early_return.returning(tide, outlook)


def staying(rules: Rules, tide: Tide, groups_per_step: int, outlook: Outlook | None) -> tuple[str, ...]:
    """Cells that keep training over the end of a burst. `tide` counts as dispatched what the next burst dispatches at once."""
    if outlook is None or not rules.extended:
        return decide.keeps_training(rules.mode, tide, groups_per_step, rules.async_training_cells)
    reading = seen(rules, tide, outlook)
    names = decide.keeps_training(rules.mode, reading, groups_per_step, rules.async_training_cells)
    if Extension.STAY in rules.extensions:
        return stay.staying(reading, groups_per_step, outlook) or names
    return names


def seen(rules: Rules, tide: Tide, outlook: Outlook) -> Tide:
    """The reading, as the extensions that are on want the rule to see it."""
    if Extension.STARTED_ONLY in rules.extensions:
        tide = started.seen(tide, outlook)
    if Extension.REMAINING_WORK in rules.extensions:
        tide = remaining.seen(tide, outlook)
    if Extension.OVERSUBSCRIBE in rules.extensions:
        tide = oversubscription.seen(tide, outlook)
    return tide


REAL: frozenset[Extension] = frozenset({Extension.EARLY_RETURN, Extension.GAIN_GATE, Extension.STAY})
"""What a real job can have. The others did not win in the simulator, and only it knows them."""

DEFAULT: frozenset[Extension] = frozenset({Extension.EARLY_RETURN, Extension.GAIN_GATE, Extension.STAY})
"""What the simulator recommends, by the evidence in docs/scheduling.md. A job that names no extensions has none: the published rule."""
