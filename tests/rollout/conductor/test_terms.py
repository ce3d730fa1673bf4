"""Who decides flips: the holder of the term, and the conductor itself while nobody holds it. Back and forth, without a grant too many."""

import asyncio
import contextlib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.rollout.conductor.checks import check, training_cells_are_a_prefix
from tests.rollout.conductor.world import World, settings, world
from tidemill.policy.burst import Plan
from tidemill.telemetry.events import RoleAcknowledged
from tidemill.wire.cell import Role
from tidemill.wire.conductor import Authority, GrantRequest, JobPhase, Term
from tidemill.wire.http import Refused, WireError
from tidemill.wire.rules import wanted
from tidemill_rollout.conductor import controller

LONG = Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=20)


class Operator:
    """A controller as it is on a cluster: it knows the tide, the rule and its term, and nothing else."""

    def __init__(self, job: World, name: str) -> None:
        self.job = job
        self.name = name
        self.term = 0
        self.granted: list[tuple[str, int]] = []  # cell, epoch
        self.away = False
        self.decides = True

    async def run(self) -> None:
        seen = -1
        while True:
            if self.away:
                await asyncio.sleep(0.01)
                continue
            try:
                held: Term = await self.job.client.authority(Authority(self.name, self.term))
                self.term = held.term
            except Refused:
                self.term = 0  # somebody else decides, or will have the next term
                await asyncio.sleep(0.01)
                continue
            except WireError:
                await asyncio.sleep(0.01)
                continue
            with contextlib.suppress(WireError):  # a refused grant: the tide has moved on since it was read
                tide = await self.job.client.tide(seen, 0.1)
                seen = tide.sequence
                for cell, role in wanted(tide) if self.decides else ():
                    grant = await self.job.client.request_grant(GrantRequest(cell, role, self.term, tide.sequence))
                    self.granted.append((cell, grant.epoch))


def no_grant_too_many(job: World) -> None:
    """Every epoch of a cell is one role, and in each burst it goes there and back at most once."""
    roles: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for event in job.of(RoleAcknowledged):
        roles[event.cell][event.epoch].add(event.role)
    assert all(len(of_epoch) == 1 for of_cell in roles.values() for of_epoch in of_cell.values())
    bursts = -(-job.how.plan.steps // job.how.plan.steps_per_burst)
    assert all(epoch <= 1 + 2 * bursts for (epoch,) in job.rows("SELECT epoch FROM roles"))


async def test_an_operator_with_nothing_but_the_tide_and_the_rule_takes_a_job_to_its_end(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        operator = Operator(job, "operator")
        running = asyncio.create_task(operator.run())
        tide = await job.to_the_end()
        running.cancel()
        assert (tide.phase, tide.controller) == (JobPhase.SUCCEEDED, "operator")
        assert len({*operator.granted}) >= 2
        check(job)
        no_grant_too_many(job)
        assert training_cells_are_a_prefix(job)


async def test_while_the_term_is_held_the_conductor_flips_nothing_and_afterwards_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "TERM_SECONDS", 3.0)
    async with world(tmp_path, settings()) as job:
        operator = Operator(job, "operator")
        operator.decides = False  # it renews, and never asks for a grant
        running = asyncio.create_task(operator.run())
        await job.until(lambda t: t.burst == 1 and t.waterlevel == 0)
        await asyncio.sleep(3.5)  # longer than the term holds without being renewed
        tide = await job.client.tide()
        assert tide.controller == "operator"
        assert [c.granted_epoch for c in tide.cells] == [1, 1]
        operator.away = True
        tide = await job.until(lambda t: t.cells[0].granted_role is Role.TRAINING)
        assert tide.controller == "conductor"
        with pytest.raises(Refused, match="it has expired"):
            await job.client.request_grant(GrantRequest("cell-1", Role.TRAINING, operator.term, tide.sequence))
        await job.to_the_end()
        running.cancel()
        check(job)


async def test_two_operators_and_the_conductor_take_turns_and_no_cell_is_granted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "TERM_SECONDS", 0.15)
    async with world(tmp_path, settings(cells=3, plan=LONG)) as job:
        operators = [Operator(job, "one"), Operator(job, "two")]
        running = [asyncio.create_task(operator.run()) for operator in operators]
        ended = asyncio.create_task(job.to_the_end(60.0))
        controllers = set()
        turn = 0
        while not ended.done():
            for number, operator in enumerate(operators):
                operator.away = turn % 3 != number  # in every third turn both are away, longer than a term holds
            turn += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(ended), 0.2)
            controllers.add((await job.client.tide()).controller)
        for task in running:
            task.cancel()
        assert (await ended).phase is JobPhase.SUCCEEDED
        assert "conductor" in controllers
        assert controllers & {"one", "two"}
        check(job)
        no_grant_too_many(job)


async def test_a_restarted_conductor_gives_the_holder_its_whole_time_to_come_back(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        operator = Operator(job, "operator")
        running = asyncio.create_task(operator.run())
        await job.until(lambda t: t.step >= 1)
        await job.kill_conductor()
        await job.start_conductor()
        assert (await job.client.tide()).controller == "operator"
        await job.to_the_end()
        running.cancel()
        assert operator.term == 1
        check(job)
        no_grant_too_many(job)
