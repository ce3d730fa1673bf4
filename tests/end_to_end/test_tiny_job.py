"""One whole job on real engines, trainers and harnesses; then its stores are asked whether everything was as it should be."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.end_to_end.probe import FLIPS
from tests.end_to_end.running import conductor
from tests.end_to_end.tiny_job import Finished
from tests.engines import start_engine, tiny_model
from tidemill.telemetry.events import (
    FlipEnded,
    RoleAcknowledged,
    StepCommitted,
    TideRead,
    VersionPublished,
    WeightsLoaded,
)
from tidemill.wire.cell import Role
from tidemill.wire.engine_control import EngineControl
from tidemill_rollout.gateway.render import Renderer

pytestmark = pytest.mark.timeout(400)

LOGPROB_TOLERANCE = 1e-3
"""Between vLLM's kernels and eager transformers, float32."""


def test_the_job_succeeds_and_its_last_line_says_what_the_store_says(finished: Finished) -> None:
    said = finished.summary
    assert (finished.code, said.phase, said.steps) == (0, "Succeeded", finished.manifest.spec.schedule.steps)
    steps = conductor(finished.job, "SELECT * FROM steps ORDER BY step")
    assert [row["mean_score"] for row in steps] == list(said.scores)
    assert all(row["committed"] for row in steps)
    assert {str(row["version"]): row["digest"] for row in conductor(finished.job, "SELECT * FROM versions")} == said.weight_checksums
    assert finished.number("SELECT COUNT(*) FROM executions WHERE state = 'Scored'") == said.executions.finished
    assert len(said.flips) == len(finished.of(FlipEnded))
    assert set(said.hours_by_role) == {"Rollout", "Training", "Flipping"}
    assert sum(said.hours_by_role.values()) * 3600 <= said.wall_seconds * finished.manifest.spec.cells.count


def test_every_execution_that_was_started_is_finished_or_dropped_with_a_reason(finished: Finished) -> None:
    executions = finished.summary.executions
    assert executions.lost == 0
    assert executions.started == executions.finished + sum(executions.dropped.values())
    assert all(executions.dropped)
    states = Counter(row["state"] for row in conductor(finished.job, "SELECT state FROM executions"))
    assert set(states) <= {"Scored", "Dropped"}
    schedule = finished.manifest.spec.schedule
    dispatched, started = finished.number("SELECT COUNT(*) FROM executions"), finished.number("SELECT COUNT(started) FROM executions")
    assert dispatched == started == states.total() == schedule.steps * schedule.groups_per_step * schedule.rollouts_per_group
    assert finished.number("SELECT COUNT(*) FROM executions WHERE attempt > 1") == 0


def test_every_harness_got_every_answer_whole(finished: Finished) -> None:
    """The harness wrote the answers that it got into a file; they are, character by character, the tokens that engines sampled."""
    renderer = Renderer(tiny_model(), finished.manifest.spec.model.tools)
    scored = {row["id"]: row["attempt"] for row in conductor(finished.job, "SELECT id, attempt FROM executions WHERE state = 'Scored'")}
    assert set(scored) <= set(finished.trajectories)
    for execution, attempt in scored.items():
        turns = finished.trajectories[execution].turns
        assert turns, execution
        for turn in turns:
            ended = turn.sampled_ids[-1] in renderer.end_ids
            assert turn.finish_reason == ("stop" if ended else "length"), (execution, turn.id)
        folder = finished.job.folder / "executions" / execution / str(attempt)
        assert (folder / "harness.log").read_text() == ""
        lines = [renderer.read(turn.sampled_ids, ()).text for turn in turns]
        assert (folder / "work" / "lines.txt").read_bytes().decode() == "\n".join(lines), execution


def test_cells_left_rollout_while_agents_were_in_mid_answer_and_others_went_on(finished: Finished) -> None:
    flips = [flip for flip in finished.of(FlipEnded) if flip.to is Role.TRAINING]
    assert sum(flip.calls_in_flight > 0 for flip in flips) >= FLIPS
    assert all(list(flip.phases) == ["drain", "sleep", "join"] for flip in flips)
    assert len(finished.moved) >= FLIPS, "of the job's own agents"
    assert all(piece.token_ids for turn in finished.moved for piece in turn.pieces)
    moved = [turn for turn in finished.turns + finished.probed.turns if len(turn.pieces) > 1]
    assert finished.summary.resubmitted_calls == len(moved)
    assert finished.summary.recomputed_tokens > sum(len(piece.token_ids) for turn in moved for piece in turn.pieces[:-1])


def test_pieces_join_exactly_along_every_conversation(finished: Finished) -> None:
    loaded = {cell: {e.version for e in finished.of(WeightsLoaded) if e.cell == cell} for cell in {e.cell for e in finished.of(WeightsLoaded)}}
    for trajectory in finished.trajectories.values():
        length: dict[str, int] = {"": 0}
        for turn in trajectory.turns:
            for piece in turn.pieces:
                assert len(piece.token_ids) == len(piece.logprobs) == len(piece.versions) > 0
                assert set(piece.versions) <= loaded[piece.cell]
            assert list(turn.versions) == sorted(turn.versions)
            assert all(math.isfinite(logprob) and logprob <= 0 for logprob in turn.logprobs)
            assert len(turn.sampled_ids) <= finished.manifest.spec.sampling.max_tokens
            assert turn.context_ids
            assert turn.parent in length, "the turn it continues has ended before"
            length[turn.id] = length[turn.parent] + len(turn.context_ids) + len(turn.sampled_ids)
            assert length[turn.id] <= finished.manifest.spec.model.max_length
        assert length.keys() == {"", *(turn.id for turn in trajectory.turns)}, "every turn has an id of its own"


def test_the_second_engine_went_on_behind_exactly_the_tokens_of_the_first(finished: Finished) -> None:
    """One token lost or doubled where an answer moved would change the probability of all that follow: recompute them with the initial weights."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    checked = 0
    for trajectory in finished.trajectories.values():
        whole: dict[str, list[int]] = {"": []}
        for turn in trajectory.turns:
            prompt = [*whole[turn.parent], *turn.context_ids]
            whole[turn.id] = [*prompt, *turn.sampled_ids]
            if turn not in finished.moved or set(turn.versions) != {0}:
                continue
            with torch.inference_mode():
                logits = model(torch.tensor([whole[turn.id]])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(-1).gather(1, torch.tensor(turn.sampled_ids)[:, None])[:, 0]
            assert torch.allclose(torch.tensor(turn.logprobs), expected, rtol=0, atol=LOGPROB_TOLERANCE), (trajectory.execution, turn.id)
            checked += 1
    assert checked > 0


def test_the_official_client_streamed_an_answer_across_a_flip_and_noticed_nothing(finished: Finished) -> None:
    renderer = Renderer(tiny_model(), finished.manifest.spec.model.tools)
    for answer in itertools.chain.from_iterable(finished.probed.conversations):
        turn, message = answer.kept.turn, answer.message
        assert message.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[turn.finish_reason]
        assert message.usage.output_tokens == len(turn.sampled_ids)
        assert message.usage.input_tokens == answer.kept.answer.prompt_tokens
        assert answer.text == renderer.read(turn.sampled_ids, ()).text
        assert turn.wire == "messages"
    first, *others = finished.probed.crossed[-1].kept.turn.pieces
    assert first.token_ids
    assert {first.cell} != {piece.cell for piece in others if piece.token_ids}
    for conversation in finished.probed.conversations:
        assert all(after.kept.turn.parent in ("", before.kept.turn.id) for before, after in pairwise(conversation))


def test_every_engine_loaded_exactly_what_was_published(finished: Finished) -> None:
    published = {event.version: event.digest for event in finished.of(VersionPublished)}
    assert list(published) == list(range(finished.manifest.spec.schedule.steps // finished.manifest.spec.schedule.steps_per_burst + 1))
    assert all(published[version] != published[version - 1] for version in published if version > 0)
    for event in finished.of(WeightsLoaded):
        assert event.digest == published[event.version], event
    loaded = {(event.cell, event.version) for event in finished.of(WeightsLoaded)}
    assert loaded >= {(cell, version) for cell in ("cell-1", "cell-2") for version in published}
    assert loaded >= {("cell-0", 0), ("cell-0", max(published))}, "the core may be kept in training from one burst to the next"


def test_the_trained_model_is_a_folder_that_transformers_and_a_fresh_engine_load(finished: Finished) -> None:
    folder = finished.job.folder / "model"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = AutoTokenizer.from_pretrained(folder)("ash", return_tensors="pt").input_ids
    assert torch.isfinite(model(prompt).logits).all()
    last = finished.of(VersionPublished)[-1]
    assert asyncio.run(_digest_in_a_fresh_engine(folder)) == last.digest == finished.summary.weight_checksums[str(last.version)]


async def _digest_in_a_fresh_engine(folder: Path) -> str:
    engine = await asyncio.to_thread(start_engine, folder)
    try:
        async with aiohttp.ClientSession() as session:
            return await EngineControl(engine.url, engine.token, session).digest()
    finally:
        engine.stop()


def test_every_micro_step_counts_once(finished: Finished) -> None:
    rows = conductor(finished.job, "SELECT * FROM microsteps")
    assert {row["state"] for row in rows} == {"Committed"}
    assert len({row["lease"] for row in rows}) == len(rows)
    per_step = Counter(row["step"] + 1 for row in rows)
    for event in finished.of(StepCommitted):
        assert sum(event.contributions.values()) == per_step[event.step] == event.statistics["microSteps"]
        assert event.contributions == Counter(row["cell"] for row in rows if row["step"] + 1 == event.step)
        assert event.trained_tokens == event.statistics["tokens"] == sum(row["trained_tokens"] for row in rows if row["step"] + 1 == event.step)
    assert len({cell for event in finished.of(StepCommitted) for cell in event.contributions}) > 1, "satellites trained too"


def test_staleness_stays_within_its_bound(finished: Finished) -> None:
    schedule = finished.manifest.spec.schedule
    bound = math.ceil(schedule.prefetch_steps / schedule.steps_per_burst)
    trained = "SELECT b.version - g.version AS age FROM groups g JOIN steps s ON s.step = g.step JOIN bursts b ON b.burst = s.burst"
    ages = [row["age"] for row in conductor(finished.job, trained)]
    assert len(ages) == schedule.steps * schedule.groups_per_step
    assert 0 <= min(ages) <= max(ages) == finished.summary.staleness_max <= bound


def test_cells_train_in_order_of_their_ordinals(finished: Finished) -> None:
    for tide in finished.tides:
        training = [cell.granted_role is Role.TRAINING for cell in sorted(tide.cells, key=lambda cell: cell.ordinal)]
        assert training == sorted(training, reverse=True), tide
    roles: dict[str, Role] = {}
    for event in finished.of(RoleAcknowledged):
        roles[event.cell] = event.role
        if event.role is Role.TRAINING:
            before = [f"cell-{ordinal}" for ordinal in range(int(event.cell.removeprefix("cell-")))]
            assert all(roles[cell] is Role.TRAINING for cell in before), event
    assert {len([c for c in tide.cells if c.granted_role is Role.TRAINING]) for tide in finished.tides} >= {0, 1, 2}


def test_the_waterlevel_never_rises_inside_a_burst_nor_above_the_capacity_at_a_flip(finished: Finished) -> None:
    readings = finished.of(TideRead)
    for before, after in pairwise(readings):
        if before.burst == after.burst:
            assert after.dispatched - after.terminated <= before.dispatched - before.terminated, after
    for flip in (flip for flip in finished.of(FlipEnded) if flip.to is Role.TRAINING):
        began = flip.time - flip.seconds
        granted = [reading for reading in readings if reading.time < began][-1]
        left = next((reading for reading in readings if reading.time >= began), granted)
        if left.burst == granted.burst:  # a new burst has dispatched anew
            assert left.dispatched - left.terminated <= left.rollout_capacity, (flip, left)
    assert readings[-1].dispatched == readings[-1].started == readings[-1].terminated


def test_the_report_is_there(finished: Finished) -> None:
    page = (finished.job.folder / "report.html").read_text()
    assert all(cell in page for cell in ("cell-0", "cell-1", "cell-2"))
    assert "src=" not in page
    assert "<link" not in page
    assert (finished.job.folder / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_nobody_logged_a_traceback(finished: Finished) -> None:
    logs = [*finished.job.folder.glob("logs/*.log"), *finished.job.folder.glob("executions/*/*/*.log"), finished.job.errors]
    assert len(logs) > 10
    assert [log.name for log in logs if "Traceback" in log.read_text(errors="replace")] == []
