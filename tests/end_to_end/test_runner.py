"""What the runner does when it cannot start a job, when it is stopped, when it is killed, and when it goes on."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.running import (
    Job,
    Process,
    alive,
    committed_steps,
    conductor,
    descendants,
    events,
    naming,
    said,
    start_job,
    stop,
    summary,
    tiny_manifest,
    wait_for,
    wait_for_end,
)
from tests.engines import tiny_model
from tidemill.local.summary import Summary
from tidemill.telemetry.events import JobStarted, StepCommitted, TideRead, VersionPublished, WeightsLoaded

pytestmark = pytest.mark.timeout(600)

STOPS_WITHIN_SECONDS = 10.0
ORPHANS_END_WITHIN_SECONDS = 3.0
STEPS = 6
TWO_CELLS = {"cells.count": 2, "cells.capacity": 12, "schedule.steps": STEPS}
"""As many places as the tiny job's three cells have, and a shorter start: it is started three times."""


# Refused before anything is started.


def refused(folder: Path, changes: Mapping[str, Any], *arguments: str) -> str:
    """What the runner says to a manifest that it must refuse. Of the work folder nothing is left."""
    job = start_job(tiny_manifest(folder, changes), folder / "run", *arguments)
    assert wait_for_end(job, 60) == 2, said(job)
    assert job.output.read_bytes() == b""
    assert not (folder / "run").exists()
    text = job.errors.read_text()
    assert "Traceback" not in text
    return text


def test_a_manifest_with_mistakes_is_refused_with_all_of_them(tmp_path: Path) -> None:
    text = refused(tmp_path, {"cells.capasity": 4, "sampling.maxTokens": -1, "schedule.mode": "Elastik"})
    assert "spec.cells.capasity" in text
    assert "capacity" in text
    assert "spec.sampling.maxTokens" in text
    assert "spec.schedule.mode" in text


def test_tasks_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert "spec.tasks.source: is 'path:nowhere', but there is no such folder" in refused(tmp_path, {"tasks.source": "path:nowhere"})


def test_what_only_the_conductor_can_see_is_refused_as_fast_as_it_starts(tmp_path: Path) -> None:
    text = refused(tmp_path, {"tasks.filter": "no-such-task"})
    assert "none of 4 matches filter 'no-such-task'" in text.splitlines()[-1]
    assert "restarted" not in text
    assert "--resume" not in text


def test_a_model_folder_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert f"{absent}" in refused(tmp_path, {"model.source": f"path:{absent}"})
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model(), broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    text = refused(tmp_path, {"model.source": f"path:{broken}"})
    assert str(broken) in text
    assert "model.safetensors" in text


def test_a_job_that_does_not_fit_into_memory_is_refused_with_the_figures(tmp_path: Path) -> None:
    text = refused(tmp_path, {"model.maxLength": 131072, "cells.capacity": 1024})
    assert "the job needs about" in text
    assert "3 engines of 2" in text, "2 kB a token, 131072 tokens, 1024 executions: over 256 GiB each"
    assert "GiB are available; lower spec.cells.count" in text


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert f"port {port} is taken" in refused(tmp_path, {}, "--ports", str(port))


# Stopped and killed.


@dataclass(frozen=True, slots=True)
class Stores:
    """What must not change any more, whatever happens to the processes."""

    steps: dict[int, tuple[str, float | None]]  # committed: digest and mean score
    versions: dict[int, str]
    ended: dict[str, tuple[str, float | None]]  # executions
    started: int
    being_scored: int  # their harnesses are dead: a resumed run scores them at once

    @classmethod
    def of(cls, job: Job) -> Stores:
        return cls(
            {r["step"]: (r["digest"], r["mean_score"]) for r in conductor(job, "SELECT * FROM steps WHERE committed IS NOT NULL")},
            {r["version"]: r["digest"] for r in conductor(job, "SELECT * FROM versions")},
            {r["id"]: (r["state"], r["score"]) for r in conductor(job, "SELECT * FROM executions WHERE state IN ('Scored', 'Dropped')")},
            len(conductor(job, "SELECT 1 FROM executions WHERE started IS NOT NULL")),
            len(conductor(job, "SELECT 1 FROM executions WHERE state = 'Evaluating'")),
        )

    def are_kept_by(self, later: Stores) -> bool:
        kept = (self.steps.items() <= later.steps.items(), self.versions.items() <= later.versions.items(), self.ended.items() <= later.ended.items())
        return all(kept) and self.started <= later.started


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, and what of it was left."""

    seconds: float
    code: int
    family: list[Process]  # before
    left: list[Process]
    stores: Stores


@dataclass(frozen=True, slots=True)
class Story:
    """One job in three runs: stopped by Ctrl-C, resumed and killed, resumed and finished."""

    in_use: str  # said to a second runner
    stopped: End
    stopped_summary: Summary
    occupied: str  # said to a run without --resume
    killed: End
    finished: Job
    finished_summary: Summary
    stores: Stores


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("runner")
    manifest = tiny_manifest(folder, TWO_CELLS)
    jobs: list[Job] = []

    def run(*arguments: str) -> Job:
        jobs.append(start_job(manifest, folder / "run", "--json", *arguments))
        return jobs[-1]

    try:
        first = run()
        wait_for(first, "the first step is committed", lambda: committed_steps(first) >= 1)
        in_use = said_by(manifest, folder / "run")
        stopped = end(first, signal.SIGINT, in_mid_work(first, 1))
        stopped_summary = summary(first)
        occupied = said_by(manifest, folder / "run")
        second = run("--resume")
        killed = end(second, signal.SIGKILL, in_mid_work(second, len(stopped.stores.steps) + 1))
        third = run("--resume")
        assert wait_for_end(third) == 0, said(third)
        return Story(in_use, stopped, stopped_summary, occupied, killed, third, summary(third), Stores.of(third))
    finally:
        for job in jobs:
            stop(job)


def in_mid_work(job: Job, steps: int) -> list[Process]:
    """All processes of a job at a moment when so many steps are committed and harnesses run in their jails."""
    wait_for(job, f"{steps} steps are committed", lambda: committed_steps(job) >= steps)
    seen: list[Process] = []

    def everybody() -> bool:
        seen[:] = descendants(job)
        return kinds(seen) == ALL_KINDS

    wait_for(job, "a harness runs", everybody)
    return seen


def said_by(manifest: Path, folder: Path) -> str:
    """What another runner says to the same folder."""
    command = [sys.executable, "-m", "tidemill.cli.main", "run", str(manifest), "--workdir", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def end(job: Job, number: signal.Signals, family: list[Process]) -> End:
    seconds = stop(job, number, seconds=30)
    deadline = time.monotonic() + ORPHANS_END_WITHIN_SECONDS
    while (left := [*alive(family), *naming(job.folder)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return End(seconds, job.process.returncode, family, left, Stores.of(job))


def kinds(family: list[Process]) -> set[str]:
    wanted = ("conductor", "gateway", "tidemill_cell", "engine", "trainer", "EngineCore", "bwrap", "writer.py")
    return {kind for kind in wanted if any(kind in word for process in family for word in process.command)}


ALL_KINDS = {"conductor", "gateway", "tidemill_cell", "engine", "trainer", "EngineCore", "bwrap", "writer.py"}


def test_a_folder_is_refused_while_another_runner_works_in_it_and_afterwards_without_resume(story: Story) -> None:
    assert "in use by another tidemill run" in story.in_use
    assert "already holds a job; continue it with --resume" in story.occupied


def test_ctrl_c_stops_everything_within_ten_seconds_and_leaves_no_process(story: Story) -> None:
    assert kinds(story.stopped.family) == ALL_KINDS
    assert story.stopped.left == []
    assert story.stopped.seconds < STOPS_WITHIN_SECONDS
    assert story.stopped.code == 130
    assert story.stopped_summary.phase == "Stopped"
    assert story.stopped_summary.steps == len(story.stopped.stores.steps)


def test_killing_the_runner_leaves_no_orphan(story: Story) -> None:
    assert kinds(story.killed.family) == ALL_KINDS
    assert story.killed.left == []
    assert story.killed.code == -signal.SIGKILL


def test_what_was_done_is_kept(story: Story) -> None:
    assert 0 < len(story.stopped.stores.steps) < len(story.killed.stores.steps) < STEPS
    assert story.stopped.stores.ended
    assert story.stopped.stores.are_kept_by(story.killed.stores)
    assert story.killed.stores.are_kept_by(story.stores)


def test_a_resumed_run_continues_at_the_right_step_with_the_same_counters(story: Story) -> None:
    everything = events(story.finished)
    assert [event.resumed for event in everything if isinstance(event, JobStarted)] == [False, True, True]
    resumed = [place for place, event in enumerate(everything) if isinstance(event, JobStarted) and event.resumed]
    for place, before in zip(resumed, (story.stopped.stores, story.killed.stores), strict=True):
        tide = next(event for event in everything[place:] if isinstance(event, TideRead))
        assert tide.step == len(before.steps)
        assert tide.started == before.started
        assert len(before.ended) <= tide.terminated <= len(before.ended) + before.being_scored
    assert [event.step for event in everything if isinstance(event, StepCommitted)] == list(range(1, STEPS + 1))


def test_the_job_then_ends_as_if_nothing_had_happened(story: Story) -> None:
    said_last, job = story.finished_summary, story.finished
    assert (said_last.phase, said_last.steps) == ("Succeeded", STEPS)
    assert len(said_last.scores) == STEPS
    assert said_last.executions.lost == 0
    assert said_last.executions.dropped == {}
    assert said_last.executions.started == said_last.executions.finished == len(story.stores.ended)
    assert [row["state"] for row in conductor(job, "SELECT DISTINCT state FROM microsteps")] == ["Committed"]
    published = {event.version: event.digest for event in events(job) if isinstance(event, VersionPublished)}
    assert published == story.stores.versions
    assert len(set(published.values())) == len(published) == STEPS // 2 + 1
    assert all(published[event.version] == event.digest for event in events(job) if isinstance(event, WeightsLoaded))
    assert said_last.staleness_max <= 1
    assert "Traceback" not in "".join(log.read_text(errors="replace") for log in job.folder.glob("logs/*.log"))


def test_a_run_that_is_stopped_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    job = start_job(tiny_manifest(tmp_path, TWO_CELLS), tmp_path / "run", "--json")
    wait_for(job, "processes are started", lambda: len(descendants(job)) >= 2)
    ended = end(job, signal.SIGINT, descendants(job))
    assert ended.left == []
    assert ended.seconds < STOPS_WITHIN_SECONDS
    assert ended.code == 130, said(job)
    assert "Traceback" not in job.errors.read_text()
    again = start_job(tiny_manifest(tmp_path, TWO_CELLS), tmp_path / "run", "--json", "--resume")
    wait_for(again, "its processes are started", lambda: len(descendants(again)) >= 2)
    assert end(again, signal.SIGINT, descendants(again)).code == 130, said(again)
