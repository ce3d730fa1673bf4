"""Which points of which curves an event makes. Pure; the horizontal axis is the step, one more than the number of updates before it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.telemetry.events import AnyEvent, EvaluationEnded, ExecutionEnded, FlipEnded, StepCommitted, VersionPublished
from tidemill.wire.cell import Role

STATISTICS = {
    "loss": "train/loss",
    "gradientNorm": "train/gradient_norm",
    "clipShare": "train/clip_share",
    "cappedShare": "train/capped_share",
    "meanLogprobDifference": "train/logprob_difference",
    "learningRate": "train/learning_rate",
    "computeSeconds": "seconds/compute",
}
"""What the core says of a step, and the curve it belongs to."""


@dataclass(frozen=True, slots=True)
class Point:
    curve: str  # "train/loss"
    step: int
    value: float
    time: float  # unix seconds


@dataclass(slots=True)
class Drawing:
    """Adds up what happens between two steps, and remembers which step each version came from."""

    _versions: dict[int, int] = field(default_factory=dict)
    _ended: list[ExecutionEnded] = field(default_factory=list)
    _flips: dict[str, float] = field(default_factory=dict)  # seconds

    def after(self, event: AnyEvent) -> tuple[Point, ...]:
        """The points that `event` completes."""
        match event:
            case StepCommitted():
                points = tuple(Point(curve, event.step, float(value), event.time) for curve, value in self._of_step(event).items())
                self._ended, self._flips = [], {}
                return points
            case EvaluationEnded():
                step = self._versions.get(event.version)
                return () if step is None else (Point("score/held_out", step, event.mean_score, event.time),)
            case VersionPublished():
                self._versions[event.version] = event.step
            case ExecutionEnded() if not event.evaluation:
                self._ended.append(event)
            case FlipEnded():
                whole = {f"to_{'training' if event.to is Role.TRAINING else 'rollout'}": event.seconds}
                for part, seconds in (whole | event.phases).items():
                    curve = f"seconds/flips_{part}"
                    self._flips[curve] = self._flips.get(curve, 0.0) + seconds
        return ()

    def _of_step(self, event: StepCommitted) -> dict[str, float]:
        values: dict[str, float] = {curve: event.statistics[name] for name, curve in STATISTICS.items() if name in event.statistics}
        if event.mean_score is not None:
            values["score/mean"] = event.mean_score
        values |= {
            "seconds/step": event.seconds,
            "staleness/publications": event.staleness,
            "staleness/updates": event.staleness_updates,
            "train/tokens": event.trained_tokens,
            "train/groups": event.groups,
            "train/executions": event.executions,
        }
        return values | self._of_executions() | self._flips

    def _of_executions(self) -> dict[str, float]:
        """Of those that ended since the step before, trained or not."""
        ended = self._ended
        if not ended:
            return {"executions/ended": 0}
        return {
            "executions/ended": len(ended),
            "executions/dropped": sum(bool(e.dropped) for e in ended),
            "executions/seconds": sum(e.seconds for e in ended) / len(ended),
            "executions/turns": sum(e.turns for e in ended) / len(ended),
            "executions/sampled_tokens": sum(e.sampled_tokens for e in ended) / len(ended),
        }
