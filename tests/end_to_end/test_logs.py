"""What the processes of the tiny job logged, one of its executions followed through all of them, its curves, and its spans."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from tests.end_to_end.tiny_job import Finished
from tidemill.cli.main import main
from tidemill.telemetry.events import ExecutionEnded, FlipEnded, StepCommitted
from tidemill.telemetry.trail import Line, lines
from tidemill_rollout.spans.outlet import outlets

pytestmark = pytest.mark.timeout(400)


def logged(finished: Finished) -> dict[str, list[Line]]:
    return {file.stem: list(lines(file.read_text(errors="replace").splitlines())) for file in (finished.job.folder / "logs").glob("*.log")}


def test_every_line_names_its_job_and_every_line_of_a_cell_a_cell(finished: Finished) -> None:
    of_processes = logged(finished)
    assert set(of_processes) >= {"conductor", "gateway", "cell-0", "cell-0-engine", "cell-0-trainer"}
    for name in ("conductor", "gateway", "cell-0", "cell-1", "cell-0-engine", "cell-0-trainer"):
        assert of_processes[name], name
        assert {line.fields.get("job") for line in of_processes[name]} == {finished.manifest.metadata.name}, name
        if name.startswith("cell"):  # of a core's trainer some lines are about the cell that it talks to
            assert all(str(line.fields.get("cell", "")).startswith("cell-") for line in of_processes[name]), name


def test_roles_and_phases_of_flips_are_logged_with_their_epochs(finished: Finished) -> None:
    said = [line.fields for line in logged(finished)["cell-0"] if line.fields["event"] in ("role acknowledged", "phase done", "flip ended")]
    assert {fields["event"] for fields in said} == {"role acknowledged", "phase done", "flip ended"}
    assert all(isinstance(fields["epoch"], int) for fields in said)


def test_an_execution_that_moved_is_followed_through_conductor_gateway_and_cells(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    moved = finished.moved[0]
    assert main(["logs", "--workdir", str(finished.job.folder), "--execution", moved.execution, "--json"]) == 0
    said = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert {fields["process"] for fields in said} >= {"conductor", "gateway"}
    events = [fields["event"] for fields in said]
    assert events.index("harness starts") < events.index("execution opened") < events.index("a call goes on") < events.index("execution judged")
    assert [fields["turn"] for fields in said if fields["event"] == "turn finished"] == [
        turn.id for turn in sorted(finished.trajectories[moved.execution].turns, key=lambda turn: turn.ended)
    ]


def test_tensorboard_has_a_point_of_every_curve_at_every_step(finished: Finished) -> None:
    found: dict[str, dict[int, float]] = {}
    for file in (finished.job.folder / "tensorboard").glob("events.out.tfevents.*"):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = float(make_ndarray(value.tensor))
    steps = finished.of(StepCommitted)
    assert {step: pytest.approx(score) for step, score in found["score/mean"].items()} == {s.step: s.mean_score for s in steps}
    assert {step: pytest.approx(norm) for step, norm in found["train/gradient_norm"].items()} == {s.step: s.statistics["gradientNorm"] for s in steps}
    assert {"train/loss", "train/clip_share", "staleness/publications", "train/tokens", "seconds/step", "executions/ended"} <= set(found)


def test_spans_of_the_job_hang_together_and_none_is_left_out(finished: Finished) -> None:
    (traces,) = outlets("tiny", "tiny-1", finished.job.folder, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    spans = [span for event in finished.events for span in traces.fold(event)]
    names = {span.name for span in spans}
    assert len(names) == len(spans)
    assert {name for span in spans for name in (span.parent, *span.links) if name is not None} <= names
    counted = Counter(span.title for span in spans)
    assert counted["execution"] == len(finished.of(ExecutionEnded))
    assert counted["turn"] == len(finished.turns)
    assert counted["step"] == len(finished.of(StepCommitted))
    assert counted["flip"] == len(finished.of(FlipEnded))
    assert counted["burst"] > 1
