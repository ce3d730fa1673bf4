"""Durations and costs measured from a finished job's records (`metrics.jsonl`)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tidemill.simulate.costs import Costs
from tidemill.simulate.traces import BadTrace, GroupTrace, Trace
from tidemill.telemetry.events import AnyEvent, ExecutionEnded, FlipEnded, StepCommitted, VersionPublished, read_events
from tidemill.wire.cell import Role


def measure(folder: Path) -> tuple[Trace, Costs]:
    """Raises `BadTrace` when the folder holds no job, or one that has not trained anything yet."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        raise BadTrace(f"{folder}: holds no job, there is no metrics.jsonl in it; name the work folder of a job that has ended")
    events = list(read_events(file))
    steps = list({e.step: e for e in events if isinstance(e, StepCommitted)}.values())
    if not steps:
        raise BadTrace(f"{file}: no step was committed in this job, so nothing can be measured; name a job that has trained")
    return _trace(events, steps, str(file)), _costs(events, steps)


def _trace(events: Iterable[AnyEvent], steps: Sequence[StepCommitted], name: str) -> Trace:
    """Groups of the whole job in the order of dispatch. Trained tokens are sampled tokens times the job's mean share of trained ones."""
    groups: defaultdict[int, dict[str, ExecutionEnded]] = defaultdict(dict)
    for event in events:
        if isinstance(event, ExecutionEnded) and not event.evaluation:
            groups[event.group][event.execution] = event
    sampled = sum(e.sampled_tokens for g in groups.values() for e in g.values() if not e.dropped)
    share = sum(s.trained_tokens for s in steps) / max(1, sampled)
    size = max(map(len, groups.values()), default=0)
    whole = [tuple(ended[name] for name in sorted(ended, key=_place)) for _, ended in sorted(groups.items()) if len(ended) == size]
    if not whole:
        raise BadTrace(f"{name}: no execution ended in this job; name a job that has trained")
    return Trace(tuple(GroupTrace(tuple(e.seconds for e in g), tuple(e.sampled_tokens * share for e in g), g[0].task) for g in whole))


def _place(execution: str) -> int:
    """In its group: g12-3 is the fourth of its group to be dispatched."""
    return int(execution.rpartition("-")[2])


def _costs(events: Sequence[AnyEvent], steps: Sequence[StepCommitted]) -> Costs:
    """Means of a cell's own computing time; medians of flips, updates and publications, which a few slow first ones would distort."""
    computed = [s for s in steps if s.statistics.get("computeSeconds")]
    tokens, seconds = sum(s.trained_tokens for s in computed), sum(s.statistics["computeSeconds"] for s in computed)
    flips: defaultdict[Role, list[float]] = defaultdict(list)
    for event in events:
        if isinstance(event, FlipEnded):
            flips[event.to].append(event.seconds)
    commits = {s.step: s.time for s in steps}
    publications = [e.time - commits[e.step] for e in events if isinstance(e, VersionPublished) and e.step in commits]
    updates = [s.seconds - s.statistics["computeSeconds"] / max(1, len(s.contributions)) for s in computed]
    micro_steps = sum(sum(s.contributions.values()) for s in steps)
    return Costs(
        train_tokens_per_second=tokens / seconds if seconds else max(1.0, sum(s.trained_tokens for s in steps) / sum(s.seconds for s in steps)),
        optimizer_step_seconds=max(0.0, min(updates, default=0.0)),  # the step that waited least for its groups
        publish_seconds=max(0.0, statistics.median(publications)) if publications else 0.0,
        flip_to_training_seconds=statistics.median(flips[Role.TRAINING]) if flips[Role.TRAINING] else 0.0,
        flip_to_rollout_seconds=statistics.median(flips[Role.ROLLOUT]) if flips[Role.ROLLOUT] else 0.0,
        micro_step_tokens=sum(s.trained_tokens for s in steps) / micro_steps if micro_steps else 0.0,
    )
