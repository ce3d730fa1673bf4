"""The page of metrics of each process of a large job, from the real registries over real stores and stand-ins for what only lives in processes."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp

from tests.rollout.conductor.world import Sandboxes, settings
from tidemill.telemetry.events import ExecutionEnded, FlipEnded, StepCommitted, VersionPublished
from tidemill.telemetry.registry import Registry
from tidemill.wire.cell import CellKind, CellPhase, CellState, Flip, Role
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.gateway import GatewayClient
from tidemill_cell.agent import Agent
from tidemill_cell.children import Child, Program
from tidemill_cell.gpu.export import export
from tidemill_cell.gpu.nvml import REASONS
from tidemill_cell.gpu.reading import Reading
from tidemill_cell.gpu.watch import Seen
from tidemill_cell.identity import Identity
from tidemill_cell.metrics import registry_of as registry_of_cell
from tidemill_cell.proxy import Proxy
from tidemill_cell.rdma import Port
from tidemill_cell.roles import Phase
from tidemill_operator import metrics as operator
from tidemill_rollout.conductor import events, job
from tidemill_rollout.conductor.conductor import Conductor, Place
from tidemill_rollout.conductor.metrics import registry_of as registry_of_conductor
from tidemill_rollout.conductor.store import Store
from tidemill_rollout.gateway.delivery import Delivery
from tidemill_rollout.gateway.executions import Gateway
from tidemill_rollout.gateway.metrics import read_from
from tidemill_rollout.gateway.routing import Routes
from tidemill_rollout.gateway.tally import Tally
from tidemill_trainer.core import Core
from tidemill_trainer.ledger import BUSY, IDLE, Ledger
from tidemill_trainer.metrics import registry_of as registry_of_trainer
from tidemill_trainer.satellite import Satellite

JOB = "a-job-with-a-name-of-usual-length"
EXECUTIONS_OF_A_GROUP = 8
PHASES = {Role.TRAINING: (Phase.DRAIN, Phase.SLEEP, Phase.JOIN), Role.ROLLOUT: (Phase.LEAVE, Phase.WAKE, Phase.WEIGHTS, Phase.ROUTE)}
REASONS_OF_DROPS = ("group time-out", "harness never called the model: it ended with code 1", "evaluator failed: no reward")
VERBS, KINDS, CODES = ("GET", "POST", "PATCH", "DELETE"), 12, ("200", "201", "404", "409", "none")


@asynccontextmanager
async def conductor(cells: int, executions: int) -> AsyncIterator[tuple[Registry, Callable[[], None]]]:
    """Its registry, and something that changes its store."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "conductor.db")
        store.db.execute("PRAGMA synchronous = OFF")
        how = settings(job=JOB, cells=cells)
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            gateway = GatewayClient("http://127.0.0.1:1", "token", session)
            place = Place(Path(folder), ("one",), (), cores_shared=False, credential="token")
            made = Conductor(how, place, store, cast(Any, Sandboxes()), gateway, session, tasks)
            with store.transaction() as db:
                job.open_job(db, how, time.time())
                _fill(db, executions, cells)
            for number in range(cells):
                made.reports.note(_state(f"cell-{number}", number), time.time())
            await made._show()
            made._outbox.flush()
            yield registry_of_conductor(made), lambda: made.change(job.probe)
        store.close()


def _fill(db: Any, executions: int, cells: int) -> None:
    now = time.time()
    groups = executions // EXECUTIONS_OF_A_GROUP
    db.execute("INSERT INTO versions VALUES (0, 0, 'digest', ?)", (now,))
    db.execute("INSERT INTO bursts VALUES (1, 0, 1, 0, ?, ?)", (now, now))
    db.execute("INSERT INTO steps (step, burst, opened, committed, mean_score) VALUES (0, 1, ?, ?, 0.5)", (now, now))
    for group in range(1, groups + 1):
        state = ("Trained", "Open", "Ready", "Dropped")[group % 4]
        db.execute("INSERT INTO groups VALUES (?, 'Train', 'task', 0, ?, ?, ?, ?, 0, ?)", (group, state, now, now, now, f"stale: {group}"))
        for place in range(EXECUTIONS_OF_A_GROUP):
            kind = "Dropped" if place == 0 else "Running" if state == "Open" else "Scored"
            reason = REASONS_OF_DROPS[group % 3] if kind == "Dropped" else ""
            sql = "INSERT INTO executions (id, group_id, state, score, reason, created, started, ended) VALUES (?, ?, ?, 0.5, ?, ?, ?, ?)"
            db.execute(sql, (f"g{group}-{place}", group, kind, reason, now, now, now))
            events.say(
                db,
                ExecutionEnded(time=now, execution=f"g{group}-{place}", group=group, task="task", seconds=60, turns=9, sampled_tokens=9, score=0.5),
            )
    events.say(db, VersionPublished(time=now, version=0, step=0, digest="digest"))
    for cell in range(cells):
        for epoch, (role, phases) in enumerate(PHASES.items(), start=2):
            flip = FlipEnded(time=now, cell=f"cell-{cell}", to=role, epoch=epoch, seconds=4, phases=dict.fromkeys(phases, 1.0), calls_in_flight=1)
            events.say(db, flip)
    figures = {
        "loss": 0.1,
        "gradientNorm": 1.0,
        "clipShare": 0.1,
        "cappedShare": 0.1,
        "meanLogprob": -1.0,
        "meanLogprobDifference": 0.01,
        "learningRate": 1e-5,
    }
    step = StepCommitted(
        time=now, step=1, seconds=60, groups=8, executions=64, trained_tokens=9, mean_score=0.5, staleness=1, statistics=figures, contributions={}
    )
    events.say(db, step)


def _state(cell: str, ordinal: int) -> CellState:
    kind = CellKind.CORE if ordinal == 0 else CellKind.SATELLITE
    return CellState(cell, kind, ordinal, "http://agent", CellPhase.READY, Role.ROLLOUT, 1, 8, 0, "digest")


def gateway(cells: int, executions: int) -> Registry:
    registry = Registry("gateway", job=JOB)
    tally, routes = Tally(registry), Routes()
    nothing = cast(Any, None)
    journal = cast(Any, SimpleNamespace(condition=""))
    made = Gateway(nothing, nothing, routes, journal, nothing, tally, max_length=1, call_seconds=1.0)
    made._executions = {f"g{n // 8}-{n % 8}": cast(Any, SimpleNamespace(live=1)) for n in range(executions)}
    for cell in range(cells):
        routes.restore(f"cell-{cell}", 1, cast(Any, SimpleNamespace(epoch=1)))
    for wire in ("chat", "messages", "responses"):
        for code in (200, 400, 401, 403, 404, 413, 429, 500, 503):
            tally.requests[wire, code] += 1
    read_from(registry, made, routes, Delivery(nothing, nothing))
    return registry


async def cell(gpus: int = 0, ports: int = 0) -> Registry:
    """Of one agent that has done everything there is to do."""
    async with aiohttp.ClientSession() as session:
        engine, trainer = (Child(Program(name, (), {}, Path("/nonexistent"), ""), session, "token") for name in ("engine", "trainer"))
        for child in (engine, trainer):
            child.starts, child.pid = 1, os.getpid()  # any process will do
        me = Identity("cell-123", CellKind.SATELLITE, 123, "http://agent", 8, job=JOB)
        agent = Agent(me, engine, trainer, None, ConductorClient("http://127.0.0.1:1", "token", session))
        proxy = Proxy("http://127.0.0.1:1", "token", session, agent.refusal)
    for role, phases in PHASES.items():
        agent.ledger.flipped(Flip("cell-123", role, 2, 0.0, 4.0, dict.fromkeys(map(str, phases), 1.0)))
    registry = registry_of_cell(agent, proxy)
    reading = Reading(0.5, 0.5, 1, 2, 300.0, 60.0, tuple((reason, False) for reason in REASONS), 1, 1)
    seen = tuple(Seen(f"GPU-{n}", reading, "", ((79, 1),)) for n in range(gpus))
    export(registry, lambda: seen, lambda: tuple(Port(f"mlx5_{n}", "1", True, 1, 1, (("symbol", 0),)) for n in range(ports)))
    return registry


def trainer(kind: type[Core] | type[Satellite]) -> Registry:
    home = kind.__new__(kind)
    home.ledger = Ledger()
    home._model = cast(Any, SimpleNamespace(step=3))
    for what in (*BUSY, *IDLE):
        home.ledger.time.turn_to(what)
    return registry_of_trainer(JOB, "cell-123", home)


def of_operator() -> Registry:
    for verb in VERBS:
        for kind in range(KINDS):
            for code in CODES:
                operator.API_CALLS.of(verb, f"Kind{kind}", code).inc(0)
    return operator.REGISTRY
