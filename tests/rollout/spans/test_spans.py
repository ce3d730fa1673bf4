"""Spans from events and trajectories, and what an OpenTelemetry collector gets of them over HTTP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Received

from tidemill.telemetry.events import AnyEvent, ExecutionEnded, FlipEnded, JobEnded, StepCommitted, TideRead
from tidemill.trajectory.files import write_trajectory
from tidemill.trajectory.records import FORMAT_VERSION, Piece, Trajectory, Turn
from tidemill.wire.cell import Role
from tidemill_rollout.spans.collector import Collector, NotTaken
from tidemill_rollout.spans.outlet import outlets
from tidemill_rollout.spans.spans import Name, Recall, Span


def turn(name: str, parent: str = "", started: float = 10.0) -> Turn:
    pieces = (Piece("cell-1", (5, 6), (-0.1, -0.2), (0, 0)), Piece("cell-2", (7,), (-0.3,), (1,)))
    return Turn(name, "g1-0", 1, parent, "", (1, 2, 3), pieces, "stop", started, started + 2.0, "chat")


def tide(burst: int, time: float) -> TideRead:
    return TideRead(time=time, dispatched=8, started=8, terminated=0, rollout_capacity=16, ready_groups=0, step=0, burst=burst)


EXECUTION = ExecutionEnded(time=60.0, execution="g1-0", group=1, task="t", seconds=50.0, turns=2, sampled_tokens=6, score=1.0)
FLIP = FlipEnded(
    time=70.0, cell="cell-0", to=Role.TRAINING, epoch=3, seconds=5.0, phases={"drain": 1.0, "sleep": 2.0, "join": 1.5}, calls_in_flight=4
)
STEP = StepCommitted(
    time=90.0, step=1, seconds=40.0, groups=2, executions=8, trained_tokens=640, mean_score=0.5, staleness=1, statistics={}, contributions={}
)
EVENTS: tuple[AnyEvent, ...] = (tide(0, 0.0), tide(1, 5.0), EXECUTION, FLIP, STEP, tide(2, 100.0), JobEnded(time=120.0, phase="Succeeded"))


def spans() -> list[Span]:
    recall = Recall(lambda execution: (turn("t1"), turn("t2", "t1", 20.0)) if execution == "g1-0" else (), lambda step: ("g1-0", "g2-0"))
    return [span for event in EVENTS for span in recall.after(event)]


def one(title: str, found: list[Span]) -> Span:
    return next(span for span in found if span.title == title)


def test_an_execution_is_a_trace_with_its_turns_and_a_link_to_its_burst() -> None:
    found = spans()
    execution, (first, second) = one("execution", found), [span for span in found if span.title == "turn"]
    assert (execution.start, execution.end, execution.parent) == (10.0, 60.0, None)
    assert execution.links == (Name("burst/1", "burst"),)
    assert {first.parent, second.parent} == {execution.name}
    assert second.links == (first.name,)
    assert (first.start, first.end, first.attributes["tidemill.cells"]) == (10.0, 12.0, "cell-1,cell-2")
    assert (first.attributes["tidemill.oldest_version"], first.attributes["tidemill.newest_version"]) == (0, 1)


def test_a_burst_is_a_trace_with_its_steps_and_flips_and_links_to_what_was_trained() -> None:
    found = spans()
    bursts = [span for span in found if span.title == "burst"]
    assert [(span.start, span.end) for span in bursts] == [(5.0, 100.0), (100.0, 120.0)]
    step, flip = one("step", found), one("flip", found)
    assert {step.parent, flip.parent} == {bursts[0].name}
    assert step.links == (Name("execution/g1-0", "execution"), Name("execution/g2-0", "execution"))
    phases = [span for span in found if span.parent == flip.name]
    assert [(span.title, span.start, span.end) for span in phases] == [("drain", 65.0, 66.0), ("sleep", 66.0, 68.0), ("join", 68.0, 69.5)]
    assert (flip.start, flip.end) == (65.0, 70.0)


def test_an_execution_without_a_score_is_a_failed_span_that_says_why() -> None:
    recall = Recall(lambda execution: (), lambda step: ())
    dropped = ExecutionEnded(time=60.0, execution="g1-1", group=1, task="t", seconds=5.0, turns=0, sampled_tokens=0, score=None, dropped="Harness")
    (span,) = recall.after(dropped)
    assert (span.failed, span.links) == ("Harness", ())


class Inbox:
    """A collector that speaks OTLP over HTTP. It refuses as long as `refuses`."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.refuses = False

    @property
    def spans(self) -> dict[str, list[tuple[str, Received]]]:
        """By title, each with the service it is of."""
        found: dict[str, list[tuple[str, Received]]] = {}
        for request in self.requests:
            for resource in request.resource_spans:
                service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        found.setdefault(span.name, []).append((service, span))
        return found


@contextmanager
def collector() -> Iterator[tuple[Inbox, str]]:
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not inbox.refuses:
                inbox.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(400 if inbox.refuses else 200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield inbox, f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()


def test_a_collector_gets_spans_that_hang_together_from_whichever_process_they_tell() -> None:
    with collector() as (inbox, url):
        sink = Collector("mill", "mill-1", lambda: OTLPSpanExporter(url))
        sink.write(spans())
        sink.close()
    found = inbox.spans
    ((service, execution),) = found["execution"]
    assert service == "tidemill-conductor"
    assert {s for s, _ in found["turn"]} == {"tidemill-gateway"}
    assert {s for s, _ in found["flip"]} == {"tidemill-cell"}
    for _, span in found["turn"]:
        assert (span.trace_id, span.parent_span_id) == (execution.trace_id, execution.span_id)
    burst = next(span for _, span in found["burst"] if span.start_time_unix_nano == 5 * 10**9)
    ((_, step),) = found["step"]
    assert (step.trace_id, step.parent_span_id) == (burst.trace_id, burst.span_id)
    assert (step.links[0].trace_id, step.links[0].span_id) == (execution.trace_id, execution.span_id)
    assert execution.links[0].span_id == burst.span_id
    assert (execution.start_time_unix_nano, execution.end_time_unix_nano) == (10 * 10**9, 60 * 10**9)
    attributes = {a.key: a.value for a in execution.attributes}
    assert attributes["tidemill.score"].double_value == 1.0
    assert len({span.span_id for listed in found.values() for _, span in listed}) == sum(len(listed) for listed in found.values())


def test_told_twice_a_span_has_the_same_ids_and_in_another_run_others() -> None:
    with collector() as (inbox, url):
        for run in ("mill-1", "mill-1", "mill-2"):
            Collector("mill", run, lambda: OTLPSpanExporter(url)).write(spans())
    ids = [span.span_id for _, span in inbox.spans["execution"]]
    assert ids[0] == ids[1] != ids[2]


def test_what_a_collector_refuses_is_an_error() -> None:
    with collector() as (inbox, url):
        inbox.refuses = True
        with pytest.raises(NotTaken):
            Collector("mill", "mill-1", lambda: OTLPSpanExporter(url)).write(spans())


def test_turns_are_read_from_the_trajectory_and_a_lost_file_costs_its_turns_alone(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    write_trajectory(tmp_path / "trajectories", Trajectory(FORMAT_VERSION, "g1-0", 1, "t", 1, 0, 1.0, (turn("t1"),)))
    (outlet,) = outlets("mill", "mill-1", tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert [span.title for span in outlet.fold(EXECUTION)] == ["turn", "execution"]
    (tmp_path / "trajectories" / "g1-0.msgpack").write_bytes(b"torn")
    assert [span.title for span in outlet.fold(EXECUTION)] == ["execution"]


def test_without_a_collector_there_is_no_outlet_and_nothing_of_opentelemetry_is_loaded(tmp_path: Path) -> None:
    assert outlets("mill", "mill-1", tmp_path, {}) == ()
    program = "import sys, tidemill_rollout.outside, tidemill_rollout.conductor.main; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
