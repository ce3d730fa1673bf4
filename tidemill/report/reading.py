"""Where a job stands, from its events alone: what the live view of a work folder shows."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.report.live import CellView, Executions, View, flip_words
from tidemill.telemetry.events import (
    AnyEvent,
    ConditionChanged,
    FlipEnded,
    JobEnded,
    JobStarted,
    RoleAcknowledged,
    StepCommitted,
    TideRead,
    VersionPublished,
    WeightsLoaded,
)


@dataclass(slots=True)
class Reading:
    """Takes events in their order."""

    started: JobStarted | None = None
    tide: TideRead | None = None
    ended: JobEnded | None = None
    step: StepCommitted | None = None
    staleness: int = 0
    published: int = -1
    roles: dict[str, RoleAcknowledged] = field(default_factory=dict)
    flips: dict[str, FlipEnded] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)

    def take(self, event: AnyEvent) -> None:
        match event:
            case JobStarted():
                self.started, self.ended, self.roles = event, None, {}
            case TideRead():
                self.tide = event
            case RoleAcknowledged():
                self.roles[event.cell] = event
            case FlipEnded():
                self.flips[event.cell] = event
            case WeightsLoaded():
                self.versions[event.cell] = event.version
            case VersionPublished():
                self.published = event.version
            case StepCommitted():
                self.step, self.staleness = event, max(self.staleness, event.staleness)
            case ConditionChanged():
                self.conditions[event.kind] = event.text
            case JobEnded():
                self.ended = event
            case _:
                pass  # of single executions and groups

    def view(self) -> View | None:
        """None before the job has started."""
        start, tide = self.started, self.tide
        if start is None:
            return None
        return View(
            job=start.job,
            mode=start.mode,
            phase=self.ended.phase if self.ended else "",
            step=max(self.step.step if self.step else 0, tide.step if tide else 0),
            steps=start.steps,
            burst=tide.burst if tide else 0,
            policy_version=self.published,
            waterlevel=tide.dispatched - tide.terminated if tide else 0,
            capacity=tide.rollout_capacity if tide else 0,
            score=self.step.mean_score if self.step else None,
            staleness=self.staleness,
            cells=tuple(self._cell(cell) for cell in start.cells),
            executions=Executions(tide.terminated, tide.started - tide.terminated, tide.dispatched - tide.started, tide.ready_groups)
            if tide
            else None,
            condition="; ".join(text for text in self.conditions.values() if text),
        )

    def _cell(self, cell: str) -> CellView:
        role, flip = self.roles.get(cell), self.flips.get(cell)
        return CellView(
            name=cell,
            word=role.role.value if role else "Starting",
            epoch=role.epoch if role else 0,
            policy_version=self.versions.get(cell, -1),
            last_flip=flip_words(flip.to.value, flip.seconds, flip.calls_in_flight) if flip else "",
        )
