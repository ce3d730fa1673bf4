"""What a job's events tell metrics. Read from the file when somebody scrapes, so that they are whole after a restart and cost the job nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from tidemill.telemetry.catalogue import conductor as catalogue
from tidemill.telemetry.events import AnyEvent, EvaluationEnded, ExecutionEnded, FlipEnded, StepCommitted, VersionPublished, WeightsLoaded
from tidemill.telemetry.registry import Registry

_decoder = msgspec.json.Decoder(AnyEvent)


class Figures:
    """`lines` gives whole lines of events from a byte on, some at a time, nothing when there are no more."""

    def __init__(self, registry: Registry, lines: Callable[[int], bytes]) -> None:
        self._lines = lines
        self._read = 0
        self._flip_seconds = registry.histogram(catalogue.FLIP_SECONDS)
        self._flip_phase_seconds = registry.histogram(catalogue.FLIP_PHASE_SECONDS)
        self._execution_seconds = registry.histogram(catalogue.EXECUTION_SECONDS)
        self._execution_score = registry.histogram(catalogue.EXECUTION_SCORE).of()
        self._step_seconds = registry.histogram(catalogue.STEP_SECONDS).of()
        self._load_seconds = registry.histogram(catalogue.PUBLICATION_LOAD_SECONDS).of()
        self._flipped: dict[str, int] = {}  # cell -> epoch of its last flip
        self._published = (-1, 0.0)  # version, when
        self._loaded: set[str] = set()  # cells that have the published version
        self.held_out_score: float | None = None
        self.statistics: dict[str, float] = {}  # of the last committed step
        self.trained_tokens = 0
        self.computed_tokens = 0.0
        self.shared_tokens = 0.0
        self.updates_skipped = 0.0

    def catch_up(self) -> None:
        """With a file that cannot be read now, or a line that is no event, what is known otherwise is still told."""
        with contextlib.suppress(OSError):
            while told := self._lines(self._read):
                for line in told.splitlines():
                    with contextlib.suppress(msgspec.MsgspecError):
                        self.take(_decoder.decode(line))
                self._read += len(told)

    def take(self, event: AnyEvent) -> None:
        match event:
            case FlipEnded():
                self._take_flip(event)
            case ExecutionEnded():
                self._execution_seconds.of("Dropped" if event.dropped else "Scored").observe(event.seconds)
                if event.score is not None and not event.evaluation:
                    self._execution_score.observe(event.score)
            case StepCommitted():
                self._take_step(event)
            case EvaluationEnded():
                self.held_out_score = event.mean_score
            case VersionPublished():
                self._published, self._loaded = (event.version, event.time), set()
            case WeightsLoaded() if event.version == self._published[0] and event.cell not in self._loaded:
                self._loaded.add(event.cell)
                self._load_seconds.observe(max(0.0, event.time - self._published[1]))

    def statistic(self, name: str) -> float | None:
        return self.statistics.get(name)

    def _take_flip(self, flip: FlipEnded) -> None:
        if flip.epoch <= self._flipped.get(flip.cell, 0):
            return  # told again
        self._flipped[flip.cell] = flip.epoch
        self._flip_seconds.of(flip.to).observe(flip.seconds)
        for phase, seconds in flip.phases.items():
            self._flip_phase_seconds.of(flip.to, phase).observe(seconds)

    def _take_step(self, step: StepCommitted) -> None:
        told = self.statistics = step.statistics
        self._step_seconds.observe(step.seconds)
        self.trained_tokens += step.trained_tokens
        self.computed_tokens += told.get("computedTokens", 0.0)
        self.shared_tokens += max(0.0, told.get("sequenceTokens", 0.0) - told.get("computedTokens", 0.0))
        self.updates_skipped += told.get("updateSkipped", 0.0)
