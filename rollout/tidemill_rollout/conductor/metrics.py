"""What a conductor exports: its store, its events and the cells as it sees them, read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tidemill.telemetry.catalogue import conductor as catalogue
from tidemill.telemetry.registry import Numbers, Registry
from tidemill.wire.cell import Role
from tidemill.wire.conductor import Tide
from tidemill_rollout.conductor import conditions
from tidemill_rollout.conductor.books import Bookkeeper, Books, Step
from tidemill_rollout.conductor.cells import Cell
from tidemill_rollout.conductor.conductor import Conductor
from tidemill_rollout.conductor.figures import Figures


def registry_of(conductor: Conductor) -> Registry:
    registry = Registry("conductor", job=conductor.settings.job)
    keeper = Bookkeeper(conductor.store)
    figures = Figures(registry, conductor.told)
    registry.before_each_page(figures.catch_up)
    _read_job(registry, conductor)
    _read_books(registry, conductor, lambda: keeper.books(conductor.settings))
    _read_figures(registry, figures)
    _read_cells(registry, conductor)
    return registry


def _read_job(registry: Registry, conductor: Conductor) -> None:
    def of_tide[T](figure: Callable[[Tide], T]) -> Callable[[], T | None]:
        return lambda: None if conductor.tide is None else figure(conductor.tide)

    registry.read(catalogue.JOB_PHASE, of_tide(lambda tide: {tide.phase.value: 1}))
    registry.read(catalogue.JOB_SUSPENDED, lambda: conductor.suspended)
    registry.read(catalogue.CONDITIONS, lambda: _by_kind(conductor.conditions))
    registry.read(catalogue.CONTROLLER_TERM, of_tide(lambda tide: 0 if tide.controller == "conductor" else tide.term))
    registry.read(catalogue.STEP, of_tide(lambda tide: tide.step))
    registry.read(catalogue.STEPS_PLANNED, lambda: conductor.settings.plan.steps)
    registry.read(catalogue.BURST, of_tide(lambda tide: tide.burst))
    registry.read(catalogue.POLICY_VERSION, of_tide(lambda tide: tide.policy_version))
    registry.read(catalogue.STALENESS_BOUND, lambda: conductor.settings.max_staleness)


def _read_books(registry: Registry, conductor: Conductor, books: Callable[[], Books]) -> None:
    registry.read(catalogue.DISPATCHED, lambda: books().counts.dispatched)
    registry.read(catalogue.STARTED, lambda: books().counts.started)
    registry.read(catalogue.TERMINATED, lambda: books().counts.terminated)
    registry.read(catalogue.WATERLEVEL, lambda: books().counts.dispatched - books().counts.terminated)
    registry.read(catalogue.EXECUTIONS, lambda: books().executions)
    registry.read(catalogue.EXECUTIONS_DROPPED, lambda: books().executions_dropped)
    registry.read(catalogue.EXECUTIONS_LOST, lambda: 0 if _at_rest(conductor) else len(books().unfinished - conductor.living))
    registry.read(catalogue.ATTEMPTS_FAILED, lambda: books().attempts_failed)
    registry.read(catalogue.GROUPS, lambda: books().groups)
    registry.read(catalogue.GROUPS_DUE, lambda: books().groups_due)
    registry.read(catalogue.GROUPS_TRAINED, lambda: books().groups.get("Trained", 0))
    registry.read(catalogue.GROUPS_DROPPED, lambda: books().groups_dropped)
    registry.read(catalogue.GROUPS_EQUAL, lambda: books().counters.get("equal groups", 0))
    registry.read(catalogue.MICROSTEPS, lambda: books().microsteps)
    registry.read(catalogue.MICROSTEPS_LEASED, lambda: books().leases)
    registry.read(catalogue.MICROSTEPS_RETURNED, lambda: books().counters.get("returned", 0))
    registry.read(catalogue.MICROSTEPS_REQUEUED, lambda: _requeued(books().counters))

    def of_step(figure: Callable[[Step], float | None]) -> Callable[[], float | None]:
        def read() -> float | None:
            step = books().step
            return None if step is None else figure(step)

        return read

    registry.read(catalogue.CHECKPOINT_TIME, of_step(lambda step: step.committed))
    registry.read(catalogue.STALENESS_PUBLICATIONS, of_step(lambda step: step.staleness))
    registry.read(catalogue.STALENESS_UPDATES, of_step(lambda step: step.staleness_updates))
    registry.read(catalogue.STEP_SCORE, of_step(lambda step: step.mean_score))

    def burst_group_seconds() -> Numbers | None:
        halves = books().halves
        return None if halves is None else halves.seconds

    def burst_group_score() -> Numbers | None:
        halves = books().halves
        return None if halves is None else halves.score

    registry.read(catalogue.BURST_GROUP_SECONDS, burst_group_seconds)
    registry.read(catalogue.BURST_GROUP_SCORE, burst_group_score)


def _read_figures(registry: Registry, figures: Figures) -> None:
    registry.read(catalogue.HELD_OUT_SCORE, lambda: figures.held_out_score)
    registry.read(catalogue.TRAINED_TOKENS, lambda: figures.trained_tokens)
    registry.read(catalogue.COMPUTED_TOKENS, lambda: figures.computed_tokens)
    registry.read(catalogue.SHARED_TOKENS, lambda: figures.shared_tokens)
    registry.read(catalogue.UPDATES_SKIPPED, lambda: figures.updates_skipped)
    registry.read(catalogue.LOSS, lambda: figures.statistic("loss"))
    registry.read(catalogue.GRADIENT_NORM, lambda: None if figures.statistics.get("updateSkipped") else figures.statistic("gradientNorm"))
    registry.read(catalogue.CLIPPED_TOKENS, lambda: figures.statistic("clipShare"))
    registry.read(catalogue.CAPPED_TOKENS, lambda: figures.statistic("cappedShare"))
    registry.read(catalogue.LOGPROB, lambda: figures.statistic("meanLogprob"))
    registry.read(catalogue.LOGPROB_DIFFERENCE, lambda: figures.statistic("meanLogprobDifference"))
    registry.read(catalogue.LEARNING_RATE, lambda: figures.statistic("learningRate"))


def _read_cells(registry: Registry, conductor: Conductor) -> None:
    def of_cells(figure: Callable[[Cell], float]) -> Callable[[], Numbers]:
        return lambda: {cell.name: figure(cell) for cell in conductor.known_cells}

    def roles() -> Numbers:
        return {(cell.name, role.value): float(cell.role is role) for cell in conductor.known_cells for role in Role}

    registry.read(catalogue.CELL_GRANTED_ROLE, roles)
    registry.read(catalogue.CELL_GRANTED_EPOCH, of_cells(lambda cell: cell.epoch))
    registry.read(catalogue.CELL_USABLE, of_cells(lambda cell: cell.usable))
    registry.read(catalogue.CELL_SETTLED, of_cells(lambda cell: cell.settled))
    registry.read(catalogue.CELL_SILENT_SECONDS, of_cells(lambda cell: conductor.reports.silent_seconds(cell.name, conductor.clock())))
    registry.read(catalogue.CELL_WEIGHTS_MISMATCH, of_cells(lambda cell: cell.serves_wrong_weights))
    registry.read(
        catalogue.ROLLOUT_CAPACITY, lambda: sum(c.capacity for c in conductor.known_cells if c.role is Role.ROLLOUT and c.usable and not c.late)
    )


def _at_rest(conductor: Conductor) -> bool:
    """What runs in the store then begins anew when the job goes on; until then it is nobody's on purpose."""
    return conductor.suspended or (conductor.tide is not None and bool(conductor.tide.ended))


def _by_kind(held: conditions.Conditions) -> dict[str, int]:
    """A cell's condition has its name behind a slash."""
    return dict(Counter(kind.partition("/")[0] for kind in held.kinds))


def _requeued(counters: dict[str, int]) -> dict[str, int]:
    return {name.removeprefix("requeued "): number for name, number in counters.items() if name.startswith("requeued ")}
