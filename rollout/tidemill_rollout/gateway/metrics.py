"""What a gateway exports: what it counts as it happens, and what its parts hold when somebody scrapes."""

from __future__ import annotations

from tidemill.telemetry.catalogue import gateway as catalogue
from tidemill.telemetry.registry import Registry
from tidemill_rollout.gateway.delivery import Delivery
from tidemill_rollout.gateway.executions import Gateway
from tidemill_rollout.gateway.routing import Routes


def read_from(registry: Registry, gateway: Gateway, routes: Routes, delivery: Delivery) -> None:
    tally = gateway.tally
    registry.read(catalogue.REQUESTS, lambda: {(wire, str(status)): number for (wire, status), number in tally.requests.items()})
    registry.read(catalogue.CALLS, lambda: gateway.state().calls)
    registry.read(catalogue.CALLS_FAILED, lambda: tally.failed)
    registry.read(catalogue.PROMPT_TOKENS, lambda: tally.prompt_tokens)
    registry.read(catalogue.SAMPLED_TOKENS, lambda: tally.sampled_tokens)
    registry.read(catalogue.RESUBMITTED_CALLS, lambda: gateway.state().resubmitted_calls)
    registry.read(catalogue.RECOMPUTED_TOKENS, lambda: gateway.state().recomputed_tokens)
    registry.read(catalogue.MOVED_KV_BLOCKS, lambda: 0)  # there is no way yet: every call that moves is computed again
    registry.read(catalogue.ATTACHED_RETRIES, lambda: gateway.state().attached_retries)
    registry.read(catalogue.LIVE_CALLS, lambda: gateway.state().live_calls)
    registry.read(catalogue.WAITING_CALLS, lambda: max(0, gateway.state().live_calls - routes.live))
    registry.read(catalogue.HELD_TURNS, lambda: delivery.held)
    registry.read(catalogue.HELD_BACK, lambda: bool(gateway.state().condition))
    registry.read(catalogue.EXECUTIONS, lambda: gateway.open_executions)
    registry.read(catalogue.ROUTES, lambda: len(gateway.state().routes))
