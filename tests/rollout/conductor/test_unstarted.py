"""Sandboxes that cannot start hold the job back: it says why, drops nothing, tries again, and goes on by itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.world import Ended, Sandboxes, Score, settings, world
from tidemill.wire.conductor import JobPhase
from tidemill.wire.gateway import GatewayClient
from tidemill_rollout.conductor import conditions, life
from tidemill_rollout.conductor.sandboxes import EvaluatorCrashed, SandboxBroken

WHY = "pod tiny-e-1-1 cannot start: container sandbox: ErrImagePull: no such image"


@dataclass
class Pods(Sandboxes):
    """Those of an image that is not there, until it is."""

    trouble: str = ""
    there: bool = True
    refused: int = 0

    async def begin(self, gateway: GatewayClient, tasks: asyncio.TaskGroup) -> list[web.RouteDef]:
        return []

    async def run(self, execution: str, attempt: int, task: str, key: str, deadline_seconds: float) -> Ended:
        if not self.there:
            self.refused += 1
            self.trouble = WHY
            raise SandboxBroken(WHY)
        self.trouble = ""
        return await super().run(execution, attempt, task, key, deadline_seconds)

    async def evaluate(self, execution: str, attempt: int, task: str) -> Score:
        if not self.there:
            self.refused += 1
            self.trouble = WHY
            raise EvaluatorCrashed(WHY)
        self.trouble = ""
        return await super().evaluate(execution, attempt, task)


async def test_an_image_that_is_not_there_pauses_the_job_and_drops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "PROBE_SECONDS", 0.1)
    async with world(tmp_path, settings(), sandboxes=(pods := Pods(there=False))) as job:
        paused = await job.until(lambda tide: tide.phase is JobPhase.PAUSED)
        assert paused.condition == f"SandboxesStart: {WHY}"
        at_once = pods.refused
        await job.until(lambda tide: pods.refused >= at_once + 2 * 3)  # more often than an execution may fail
        assert job.rows("SELECT COUNT(*), SUM(failures) FROM executions WHERE state IN ('Dropped', 'Scored') OR failures") == [(0, None)]
        assert job.rows("SELECT COUNT(*) <= 1 FROM executions WHERE state = 'Running'") == [(1,)], "one at a time is tried"
        pods.there = True
        assert (await job.to_the_end()).phase is JobPhase.SUCCEEDED
        check(job)


async def test_evaluators_that_cannot_start_are_asked_again_until_they_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(life, "PROBE_SECONDS", 0.05)
    async with world(tmp_path, settings(), sandboxes=(pods := Pods())) as job:
        await job.until(lambda tide: tide.started > 0)
        pods.there = False
        await job.until(lambda tide: tide.phase is JobPhase.PAUSED)
        await job.until(lambda tide: pods.refused > 8 * life.MOST_EVALUATIONS)
        assert job.rows("SELECT COUNT(*) FROM executions WHERE state = 'Dropped'") == [(0,)]
        pods.there = True
        assert (await job.to_the_end()).phase is JobPhase.SUCCEEDED
        check(job)
