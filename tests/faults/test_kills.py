"""One real job that lives through kill -9 of every kind of its processes, at named points and then at random times."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.end_to_end.running import (
    Job,
    Process,
    alive,
    committed_steps,
    conductor,
    descendants,
    events,
    process_of,
    said,
    start_job,
    stop,
    summary,
    tiny_manifest,
    turns,
    wait_for,
    wait_for_end,
)
from tests.faults.striking import AGENT, CONDUCTOR, ENGINE, GATEWAY, TRAINER, Seen, Strike, Striker
from tidemill.api.rljob import Tools
from tidemill.telemetry.events import AnyEvent, JobEnded, StepCommitted, VersionPublished, WeightsLoaded
from tidemill.trajectory.files import read_trajectory
from tidemill.trajectory.records import Trajectory, Turn
from tidemill.transfer.checksum import Summed, digest, of_bytes
from tidemill_rollout.gateway.render import Renderer

STEPS = 12
SATELLITES = ("cell-1", "cell-2")
CELLS = ("cell-0", *SATELLITES)
RANDOM_KILLS = 4
LONGEST_PAUSE_SECONDS = 4.0
STOP_SECONDS = 0.005  # until a stopped process stands still

pytestmark = pytest.mark.timeout(600)


def engine_in_mid_answer(striker: Striker) -> Strike:
    cell = "cell-2"
    wait_for(striker.job, f"{cell} samples", lambda: striker.number(ENGINE, cell, "vllm:generation_tokens_total") > 20)

    def look() -> Seen | None:
        calls = striker.number(AGENT, cell, "tidemill_cell_live_calls")
        return Seen(cell, (f"{calls:.0f} calls in flight",)) if calls >= 4 else None

    return _finished_elsewhere(striker.job, striker.strike("engine in mid-answer", ENGINE, look, children_too=True))


def gateway_with_calls_in_flight(striker: Striker) -> Strike:
    def look() -> Seen | None:
        calls = sum(striker.number(AGENT, cell, "tidemill_cell_live_calls") for cell in CELLS)
        begun = conductor(striker.job, "SELECT DISTINCT execution FROM turns JOIN executions e ON e.id = execution WHERE e.state = 'Running'")
        if calls < 2 or len(begun) < 3:
            return None
        return Seen("", (f"{calls:.0f} calls in flight", f"{len(begun)} conversations go on"))

    return striker.strike("gateway with calls in flight", GATEWAY, look)


def satellite_trainer_in_mid_step(striker: Striker) -> Strike:
    return striker.strike("trainer of a satellite in mid-step", TRAINER, lambda: _holding(striker.job, SATELLITES))


def core_trainer_in_mid_step(striker: Striker) -> Strike:
    return striker.strike("trainer of the core in mid-step", TRAINER, lambda: _holding(striker.job, ("cell-0",)))


def core_trainer_after_its_checkpoint_before_the_commit(striker: Striker) -> Strike:
    """The conductor is held while the checkpoint is written, so that the commit cannot come first.

    A core on a busy machine may tell of its checkpoint before the test sees it. At the third time the conductor dies with what it was told: a
    cell does not start a trainer again that is killed again and again.
    """
    point, job = "trainer of the core between checkpoint and commit", striker.job
    for conductor_too in (False, False, True):
        step, keeper = _held_before_the_commit(striker, point)
        core = striker.process(TRAINER, "cell-0")
        assert core is not None
        durable = job.folder / "checkpoints" / f"step-{step:06d}"
        deadline = time.monotonic() + 30
        while not durable.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)
        os.kill(core.pid, signal.SIGKILL)
        at = time.time()
        lives = _lives(job, "cell-0")
        leases = tuple(r[0] for r in conductor(job, "SELECT lease FROM microsteps WHERE step = ? AND lease IS NOT NULL", step - 1))
        os.kill(keeper.pid, signal.SIGKILL if conductor_too else signal.SIGCONT)
        _wait_for_another_life(job, "cell-0", lives)
        if committed_steps(job) == step - 1 or _committed_after(job, step, at + 0.5):
            return Strike(point, "cell-0", at, leases, conductor_too)
    raise AssertionError(f"a commit that nobody was told of:\n{said(job)}")


def conductor_with_executions_running(striker: Striker) -> Strike:
    def look() -> Seen | None:
        rows = conductor(striker.job, "SELECT id FROM executions WHERE state = 'Running'")
        return Seen("", tuple(r["id"] for r in rows)) if len(rows) >= 2 else None

    return striker.strike("conductor with executions running", CONDUCTOR, look)


def agent_in_rollout(striker: Striker) -> Strike:
    def look() -> Seen | None:
        for cell in reversed(SATELLITES):
            calls = striker.number(ENGINE, cell, "vllm:num_requests_running")
            if calls >= 2 and _roles(striker.job, "role = 'Rollout' AND acknowledged_epoch = epoch", (cell,)):
                return Seen(cell, (f"{calls:.0f} calls in flight",))
        return None

    return _finished_elsewhere(striker.job, striker.strike("agent in rollout", AGENT, look))


def agent_in_a_flip_to_training(striker: Striker) -> Strike:
    return striker.strike(
        "agent in a flip to training", AGENT, lambda: _roles(striker.job, "role = 'Training' AND acknowledged_epoch < epoch", CELLS)
    )


def agent_in_a_flip_to_rollout(striker: Striker) -> Strike:
    return striker.strike("agent in a flip to rollout", AGENT, lambda: _roles(striker.job, "role = 'Rollout' AND acknowledged_epoch < epoch", CELLS))


NAMED_POINTS = (
    engine_in_mid_answer,
    gateway_with_calls_in_flight,
    satellite_trainer_in_mid_step,
    core_trainer_in_mid_step,
    agent_in_a_flip_to_rollout,
    conductor_with_executions_running,
    core_trainer_after_its_checkpoint_before_the_commit,
    agent_in_a_flip_to_training,
    agent_in_rollout,
)


def random_kills(seed: int) -> Iterator[Callable[[Striker], Strike]]:
    chance = random.Random(seed)
    victims = [(GATEWAY, ""), (CONDUCTOR, ""), *((module, cell) for module in (AGENT, ENGINE, TRAINER) for cell in CELLS)]
    for module, cell in chance.sample(victims, RANDOM_KILLS):
        pause = chance.uniform(0.0, LONGEST_PAUSE_SECONDS)

        def kill(striker: Striker, module: str = module, cell: str = cell, pause: float = pause) -> Strike:
            at = time.monotonic() + pause

            def look() -> Seen | None:
                return Seen(cell, (f"{pause:.2f} s after the last",)) if time.monotonic() >= at else None

            return striker.strike(f"{module} {cell} at a random time", module, look)

        yield kill


@dataclass
class Lived:
    """What is left of the job, and what was done to it."""

    job: Job
    seed: int
    renderer: Renderer
    strikes: list[Strike] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)  # of the job, as of before each kill and before its end

    def of[E: AnyEvent](self, kind: type[E]) -> list[E]:
        return [event for event in events(self.job) if isinstance(event, kind)]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [read_trajectory(file) for file in sorted((self.job.folder / "trajectories").glob("*.msgpack"))]

    def struck(self, point: str) -> Strike:
        return next(s for s in self.strikes if s.point == point)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    folder = tmp_path_factory.mktemp("kills")
    seed = int(os.environ.get("TIDEMILL_FAULT_SEED") or time.time_ns() % 1_000_000)
    print(f"TIDEMILL_FAULT_SEED={seed}")
    job = start_job(tiny_manifest(folder, {"schedule.steps": STEPS}), folder / "job", "--json")
    try:
        started = wait_for(job, "the gateway is started", lambda: process_of(job, GATEWAY))
        assert started is not None
        told, striker = Lived(job, seed, Renderer(Path(started.option("--model")), Tools.TEXT)), Striker(job)
        for kill in (*NAMED_POINTS, *random_kills(seed)):
            told.processes += descendants(job)
            told.strikes.append(kill(striker))
            print(f"step {committed_steps(job)}: {told.strikes[-1]}")
        told.processes += descendants(job)
        wait_for_end(job)
        yield told
    finally:
        stop(job)


def test_the_job_succeeds_and_leaves_no_process(lived: Lived) -> None:
    assert lived.job.process.returncode == 0, f"seed {lived.seed}:\n{said(lived.job)}"
    assert [event.phase for event in lived.of(JobEnded)] == ["Succeeded"]
    assert summary(lived.job).phase == "Succeeded"
    assert alive(lived.processes) == []


def test_no_execution_is_lost_and_none_is_dropped(lived: Lived) -> None:
    counted = summary(lived.job).executions
    assert (counted.lost, counted.dropped) == (0, {})
    assert counted.started == counted.finished == len(conductor(lived.job, "SELECT 1 FROM executions"))
    rows = conductor(lived.job, "SELECT * FROM executions")
    assert {row["state"] for row in rows} == {"Scored"}
    assert [row["id"] for row in rows if row["failures"]] == []  # a kill is nobody's failure
    kills_of_the_conductor = sum(strike.conductor_too or strike.point.startswith((CONDUCTOR, "conductor")) for strike in lived.strikes)
    assert max(row["attempt"] for row in rows) <= 1 + kills_of_the_conductor


def test_every_step_is_committed_once_and_holds_every_micro_step_once(lived: Lived) -> None:
    committed = lived.of(StepCommitted)
    assert [step.step for step in committed] == list(range(1, STEPS + 1))
    rows = conductor(lived.job, "SELECT step, state, trained_tokens FROM microsteps")
    assert {row["state"] for row in rows} == {"Committed"}
    micro_steps, tokens = Counter(row["step"] + 1 for row in rows), Counter[int]()
    for row in rows:
        tokens[row["step"] + 1] += row["trained_tokens"]
    for step in committed:  # the statistics were summed by those who computed, with the gradients
        assert step.statistics["microSteps"] == micro_steps[step.step] == sum(step.contributions.values())
        assert step.statistics["tokens"] == tokens[step.step] == step.trained_tokens


def test_what_a_killed_trainer_held_was_computed_again(lived: Lived) -> None:
    final = {row["lease"] for row in conductor(lived.job, "SELECT lease FROM microsteps")}
    for point in ("trainer of a satellite in mid-step", "trainer of the core in mid-step", "trainer of the core between checkpoint and commit"):
        lost = lived.struck(point).facts
        assert lost
        assert not final & set(lost), f"{point}: leases {lost} were lost with the trainer"


def test_weights_are_what_was_committed_everywhere(lived: Lived) -> None:
    steps = {row["step"] + 1: row["digest"] for row in conductor(lived.job, "SELECT step, digest FROM steps WHERE committed IS NOT NULL")}
    published = {event.version: event for event in lived.of(VersionPublished)}
    assert len(published) == len(lived.of(VersionPublished))
    assert all(steps[event.step] == event.digest for event in published.values() if event.step)
    assert len({event.digest for event in published.values()}) == len(published)
    assert all(event.digest == published[event.version].digest for event in lived.of(WeightsLoaded))
    assert {event.cell for event in lived.of(WeightsLoaded) if event.version == max(published)} == set(CELLS)
    model = load_file(lived.job.folder / "model" / "model.safetensors")
    assert digest(Summed(name, str(t.dtype), t.shape, of_bytes(t.tobytes())) for name, t in model.items()) == steps[STEPS]


def test_staleness_stays_within_its_bound(lived: Lived) -> None:
    assert max(step.staleness for step in lived.of(StepCommitted)) <= 1
    assert max(row["staleness"] for row in conductor(lived.job, "SELECT staleness FROM steps")) <= 1


def test_every_harness_got_whole_answers_and_they_are_the_ones_that_are_trained(lived: Lived) -> None:
    trajectories = lived.trajectories
    assert len(trajectories) == len(conductor(lived.job, "SELECT 1 FROM executions"))
    for trajectory in trajectories:
        chain = trajectory.turns
        assert [turn.parent for turn in chain] == ["", *(turn.id for turn in chain[:-1])]
        assert {turn.finish_reason for turn in chain} <= {"stop", "length"}
        told = [lived.renderer.read(turn.sampled_ids, ()).text for turn in chain]
        written = lived.job.folder / "executions" / trajectory.execution / str(trajectory.attempt) / "work" / "lines.txt"
        assert written.read_bytes() == "\n".join(told).encode()


def test_answers_that_a_killed_engine_had_begun_were_finished_by_another(lived: Lived) -> None:
    for point in ("engine in mid-answer", "agent in rollout"):
        strike = lived.struck(point)
        assert any(_went_on(turn, strike) for t in lived.trajectories for turn in t.turns), f"{strike}: no turn has a piece of it and one more"


def test_a_conversation_goes_on_from_the_journal_after_the_gateways_death(lived: Lived) -> None:
    """Turns of before the kill are continued by turns of after it, also where the call between them was in flight and had to be sampled anew."""
    strike = lived.struck("gateway with calls in flight")
    known = {turn.id: turn for t in lived.trajectories for turn in t.turns}
    assert any(turn.parent and known[turn.parent].ended < strike.at < turn.started for turn in known.values())
    assert not any(turn.started < strike.at < turn.ended for turn in known.values())


def _finished_elsewhere(job: Job, strike: Strike) -> Strike:
    """Before anything else is killed that answer may need."""
    wait_for(job, f"{strike.point}: an answer it had begun is finished by another", lambda: any(_went_on(turn, strike) for turn in turns(job)))
    return strike


def _went_on(turn: Turn, strike: Strike) -> bool:
    """Whether the killed cell sampled a part of it, and another one a later part."""
    cells = [piece.cell for piece in turn.pieces]
    return turn.started < strike.at < turn.ended and strike.cell in cells[:-1]


def _lives(job: Job, cell: str) -> int:
    """How many trainers of this cell have asked for work so far."""
    return len(conductor(job, "SELECT 1 FROM trainers WHERE cell = ?", cell))


def _wait_for_another_life(job: Job, cell: str, lives: int) -> None:
    wait_for(job, f"the trainer of {cell} asks again", lambda: _lives(job, cell) > lives)


def _holding(job: Job, cells: tuple[str, ...]) -> Seen | None:
    for cell in cells:
        rows = conductor(job, "SELECT lease FROM microsteps WHERE state = 'Leased' AND cell = ?", cell)
        if rows:
            return Seen(cell, tuple(row["lease"] for row in rows))
    return None


def _roles(job: Job, condition: str, cells: tuple[str, ...]) -> Seen | None:
    rows = [row for row in conductor(job, f"SELECT * FROM roles WHERE epoch > 1 AND {condition} ORDER BY ordinal DESC") if row["cell"] in cells]
    return Seen(rows[0]["cell"], (f"epoch {rows[0]['epoch']}, acknowledged {rows[0]['acknowledged_epoch']}",)) if rows else None


def _held_before_the_commit(striker: Striker, point: str) -> tuple[int, Process]:
    """The step whose checkpoint is being written now, and the conductor, stopped before it has committed that step."""
    while True:
        step = committed_steps(striker.job) + 1
        if (striker.job.folder / "checkpoints" / f".step-{step:06d}.partial").exists():
            keeper = striker.process(CONDUCTOR)
            assert keeper is not None
            os.kill(keeper.pid, signal.SIGSTOP)
            time.sleep(STOP_SECONDS)
            if committed_steps(striker.job) == step - 1:
                return step, keeper
            os.kill(keeper.pid, signal.SIGCONT)
        striker.goes_on(point)
        time.sleep(0.0005)


def _committed_after(job: Job, step: int, at: float) -> bool:
    return any(row["committed"] > at for row in conductor(job, "SELECT committed FROM steps WHERE step = ? AND committed IS NOT NULL", step - 1))
