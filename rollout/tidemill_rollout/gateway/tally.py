"""What a gateway counts as it happens. Plain numbers: a call costs it two microseconds."""

from __future__ import annotations

from collections import Counter

from aiohttp import web

from tidemill.telemetry.catalogue import gateway as catalogue
from tidemill.telemetry.registry import Registry
from tidemill.trajectory.records import Turn

WIRE = web.RequestKey("wire", str)
"""Set on requests that are counted: those in the name of a harness's wire."""


class Tally:
    def __init__(self, registry: Registry) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by wire and status
        self.failed = 0  # calls
        self.prompt_tokens = 0
        self.sampled_tokens = 0
        self._call_seconds = registry.histogram(catalogue.CALL_SECONDS)
        self._first_token_seconds = registry.histogram(catalogue.FIRST_TOKEN_SECONDS).of()

    def kept(self, turn: Turn, prompt_tokens: int, first_token: float) -> None:
        """A call is complete and journaled. `first_token` is when an engine had sampled one, in the time of `turn.started`; 0: none was."""
        self.prompt_tokens += prompt_tokens
        for piece in turn.pieces:
            self.sampled_tokens += len(piece.token_ids)
        self._call_seconds.of(turn.wire).observe(max(0.0, turn.ended - turn.started))
        if first_token:
            self._first_token_seconds.observe(max(0.0, first_token - turn.started))
