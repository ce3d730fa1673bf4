"""Hands spans to an OpenTelemetry collector over OTLP, as OTEL_EXPORTER_OTLP_ENDPOINT and its kin say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tidemill_rollout.spans.spans import Name, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

MOST_AT_ONCE = 512


class NotTaken(Exception):
    """The collector did not take the spans; why stands in the log of the OpenTelemetry SDK."""


class Collector:
    """`run` is the same in every life of the job, and in no other job."""

    def __init__(self, job: str, run: str, exporter: Callable[[], SpanExporter] | None = None) -> None:
        self._job = job
        self._run = run
        self._exporter = (exporter or _otlp)()

    def write(self, spans: Sequence[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        for first in range(0, len(spans), MOST_AT_ONCE):
            batch = [self._readable(span) for span in spans[first : first + MOST_AT_ONCE]]
            if self._exporter.export(batch) is not SpanExportResult.SUCCESS:
                raise NotTaken("the OpenTelemetry collector did not take the spans; is OTEL_EXPORTER_OTLP_ENDPOINT right, and does it answer?")

    def close(self) -> None:
        self._exporter.shutdown()

    def _readable(self, span: Span) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link, Status, StatusCode

        return ReadableSpan(
            name=span.title,
            context=self._context(span.name),
            parent=self._context(span.parent) if span.parent is not None else None,
            resource=_resource(span.service, self._job),
            attributes=span.attributes,
            links=[Link(self._context(link)) for link in span.links],
            status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.OK),
            start_time=round(span.start * 1e9),
            end_time=round(max(span.start, span.end) * 1e9),
        )

    def _context(self, name: Name) -> SpanContext:
        from opentelemetry.trace import SpanContext, TraceFlags

        return SpanContext(
            self._number(name.trace, 16), self._number(f"{name.trace}/{name.span}", 8), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )

    def _number(self, name: str, length: int) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._run}/{name}".encode(), digest_size=length).digest())


@cache
def _resource(service: str, job: str) -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource.create({"service.name": f"tidemill-{service}", "tidemill.job": job})


def _otlp() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
