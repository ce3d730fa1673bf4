"""What the operator tells Prometheus about itself. What each figure means is declared in the catalogue."""

from __future__ import annotations

from tidemill.telemetry.catalogue import operator as catalogue
from tidemill.telemetry.registry import Registry

REGISTRY = Registry("operator")

RECONCILE_SECONDS = REGISTRY.histogram(catalogue.RECONCILE_SECONDS).of()
RECONCILE_ERRORS = REGISTRY.counter(catalogue.RECONCILE_ERRORS).of()
QUEUE_DEPTH = REGISTRY.gauge(catalogue.QUEUE_DEPTH).of()
API_CALLS = REGISTRY.counter(catalogue.API_CALLS)
LEADER = REGISTRY.gauge(catalogue.LEADER).of()
FLIPS = REGISTRY.counter(catalogue.FLIPS)
GRANT_SECONDS = REGISTRY.histogram(catalogue.GRANT_SECONDS).of()
FLIP_SECONDS = REGISTRY.histogram(catalogue.FLIP_SECONDS)
