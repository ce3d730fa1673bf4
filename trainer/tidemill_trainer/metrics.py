"""What a trainer exports."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.telemetry.catalogue import trainer as catalogue
from tidemill.telemetry.registry import Registry
from tidemill_trainer.core import Core
from tidemill_trainer.ledger import BUSY, IDLE
from tidemill_trainer.satellite import Satellite


def registry_of(job: str, cell: str, home: Core | Satellite) -> Registry:
    ledger = home.ledger
    registry = Registry("trainer", job=job, cell=cell)
    registry.read(catalogue.BUSY_SECONDS, lambda: ledger.seconds(BUSY))
    registry.read(catalogue.IDLE_SECONDS, lambda: ledger.seconds(IDLE))
    registry.read(catalogue.STEP, lambda: home.held_step)
    registry.read(catalogue.MICROSTEPS, lambda: ledger.microsteps)
    registry.read(catalogue.COMPUTED_TOKENS, lambda: ledger.computed_tokens)
    registry.read(catalogue.CHECKSUM_FAILURES, lambda: ledger.checksum_failures)

    def of[T](kind: type[T], figure: Callable[[], float]) -> Callable[[], float | None]:
        """Only one of this kind has something to tell."""
        return figure if isinstance(home, kind) else lambda: None

    registry.read(catalogue.WEIGHT_BYTES, of(Satellite, lambda: ledger.weight_bytes))
    registry.read(catalogue.GRADIENT_BYTES, of(Satellite, lambda: ledger.gradient_bytes))
    registry.read(catalogue.PUBLICATIONS, of(Core, lambda: ledger.publications))
    registry.read(catalogue.PUBLICATION_SECONDS, of(Core, lambda: ledger.publication_seconds))
    registry.read(catalogue.PUBLICATION_BYTES, of(Core, lambda: ledger.publication_bytes))
    registry.read(catalogue.CHECKPOINTS, of(Core, lambda: ledger.checkpoints))
    registry.read(catalogue.CHECKPOINT_SECONDS, of(Core, lambda: ledger.checkpoint_seconds))
    registry.read(catalogue.CHECKPOINT_BYTES, of(Core, lambda: ledger.checkpoint_bytes))
    return registry
