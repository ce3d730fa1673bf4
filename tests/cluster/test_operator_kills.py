"""The operator is killed before and after every single step of a flip: the next one completes the same epoch, and no epoch ever has two roles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.api_server import ApiServer
from tests.cluster.operator_process import Cluster, Operator, cluster, job
from tests.cluster.operator_stand_ins import Processes, processes
from tests.cluster.proxy import Fault, FaultProxy
from tidemill.wire.cell import Role, RoleOrder
from tidemill.wire.conductor import Grant

CELLS = ["cell-0", "cell-1"]


@dataclass(frozen=True)
class Point:
    """Before the step has an effect, or when it is `done` and nobody has heard of it."""

    name: str
    done: bool
    path: str = ""  # of a write at the API server


WRITES = {
    "role": "/gpucells/job-cell-0\\?",
    "status of the cell": "/gpucells/job-cell-0/status",
    "status of the job": "/rljobs/job/status",
    "event": "/events",
}
POINTS = (
    Point("grant", True),
    Point("order", False),
    Point("order", True),
    *(Point(name, done, path) for name, path in WRITES.items() for done in (False, True)),
)


@asynccontextmanager
async def running_job(server: ApiServer, namespace: str, folder: Path) -> AsyncIterator[tuple[Cluster, Processes, FaultProxy, Operator]]:
    with FaultProxy(server).running() as proxy:
        async with cluster(server, namespace, folder) as here, processes(CELLS) as there:
            operator = await here.start(proxy.url)
            await here.submit(job(), there.conductor.url)
            await here.until(here.is_ready)
            await here.until(lambda: here.is_acknowledged("cell-0", "Rollout", 1))
            yield here, there, proxy, operator


def writes(proxy: FaultProxy) -> int:
    """Without the lease's renewals."""
    return sum(call.writes and call.resource != "leases" for call in list(proxy.calls))


def assert_no_epoch_had_two_roles(there: Processes) -> None:
    issued = {(g.cell, g.epoch): g.role for g in there.conductor.issued}
    for cell, agent in there.agents.items():
        epochs = [order.epoch for order in agent.orders]
        assert epochs == sorted(epochs)
        for epoch, role in agent.acknowledged.items():
            assert epoch == 1 or issued[cell, epoch] is role


@pytest.mark.timeout(900)
async def test_killed_before_or_after_any_step_of_a_flip_the_next_operator_completes_the_same_epoch(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    async with running_job(api_server, namespace, tmp_path) as (here, there, proxy, operator):
        for number, point in enumerate(POINTS, 1):
            epoch = 2 * number  # each round is one flip into training and one back
            struck = arm(point, there, proxy, operator)
            there.conductor.terminated = there.conductor.dispatched - 9
            await there.conductor.finish(1)
            await here.until(lambda struck=struck: answer(struck()), seconds=60.0)
            operator.kill()
            await operator.process.wait()
            proxy.heal()
            await here.start(proxy.url)
            await acknowledged(here, proxy, "Training", epoch)
            await there.conductor.end_burst()
            await acknowledged(here, proxy, "Rollout", epoch + 1)
            operator = here.operators[-1]
            assert [g.epoch for g in there.conductor.issued if g.cell == "cell-0"] == list(range(2, epoch + 2)), point
        assert_no_epoch_had_two_roles(there)
        assert not there.agents["cell-1"].orders


async def acknowledged(here: Cluster, proxy: FaultProxy, role: str, epoch: int) -> None:
    """An operator that ends by itself, on a machine too busy to renew its short lease, is started again, as a kubelet would."""

    async def ask() -> bool:
        if here.operators[-1].process.returncode is not None:
            await here.start(proxy.url)
        return await here.is_acknowledged("cell-0", role, epoch)

    await here.until(ask, seconds=90.0)


def arm(point: Point, there: Processes, proxy: FaultProxy, operator: Operator) -> Callable[[], bool]:
    """The operator dies at this point of the next flip. Answers whether it has been reached."""
    if point.path:
        fault = Fault("PATCH|POST", point.path, 1, lose_answer=True) if point.done else Fault("PATCH|POST", point.path, 1, delay_seconds=60.0)
        proxy.add(fault)
        return lambda: fault.hits > 0 and (not point.done or _done(proxy, point.path))
    agent, conductor = there.agents["cell-0"], there.conductor
    obey, issue = agent.obey, conductor.issue

    async def obeys(order: RoleOrder) -> None:
        agent.obey = obey
        if point.done:
            await obey(order)
        operator.kill()

    def issues(cell: str, role: Role) -> Grant:
        conductor.issue = issue
        granted = issue(cell, role)
        operator.kill()
        return granted

    if point.name == "grant":
        conductor.issue = issues
    else:
        agent.obey = obeys
    return lambda: operator.process.returncode is not None


async def test_a_flip_takes_few_writes(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with running_job(api_server, namespace, tmp_path) as (here, there, proxy, _):
        await asyncio.sleep(2.0)  # what belongs to the start is written
        before = writes(proxy)
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))
        await here.until(here.status, lambda status: status.get("flips"))
        await asyncio.sleep(2.0)
        assert writes(proxy) - before < 10


async def test_two_operators_one_leads_and_the_other_follows_when_it_dies(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with running_job(api_server, namespace, tmp_path) as (here, there, _, first):
        lease = await here.lease()
        second = await here.start()
        await asyncio.sleep(2.0)
        assert (await here.lease())["spec"]["holderIdentity"] == lease["spec"]["holderIdentity"]
        assert there.conductor.term == 1
        first.kill()
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))
        assert second.process.returncode is None
        assert there.conductor.term == 2
        assert_no_epoch_had_two_roles(there)


async def test_a_leader_that_was_frozen_past_its_lease_writes_nothing_more(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with running_job(api_server, namespace, tmp_path) as (here, there, proxy, first):
        first.freeze()
        await here.start()
        await here.until(lambda: _holder_changes(here))
        await here.until(lambda: _term(there), lambda term: term == 2)
        before = writes(proxy)
        first.thaw()
        assert await asyncio.wait_for(first.process.wait(), 20.0) == 1
        assert writes(proxy) == before
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))


@pytest.mark.timeout(400)
async def test_two_operators_that_are_cut_off_from_the_api_server_in_turn_never_both_write(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    """The one that is cut off still reaches the conductor and the agents."""
    async with running_job(api_server, namespace, tmp_path) as (here, there, proxy, first):
        with FaultProxy(api_server).running() as other:
            second = await here.start(other.url)
            await other_waits(other)
            for cut_off, leader, at_work, epoch in ((proxy, first, other, 2), (other, second, proxy, 3)):
                cut_off.answer(503, count=1_000_000)
                cut_off.drop_watches()
                accepted, before = taken(cut_off), taken(at_work)
                if epoch == 2:
                    await there.conductor.finish(8)
                else:
                    await there.conductor.end_burst()
                role = "Training" if epoch == 2 else "Rollout"
                await here.until(lambda epoch=epoch, role=role: here.is_acknowledged("cell-0", role, epoch))
                assert there.conductor.term == epoch, "a new leader has a new term"
                assert await asyncio.wait_for(leader.process.wait(), 30.0) == 1, "who lost the lease ends"
                assert taken(cut_off) == accepted, "and the API server took nothing more of it"
                assert taken(at_work) > before
                cut_off.heal()
                if epoch == 2:
                    await here.start(proxy.url)
                    await other_waits(proxy)
            assert [(g.epoch, g.role.value) for g in there.conductor.issued] == [(2, "Training"), (3, "Rollout")]
            assert_no_epoch_had_two_roles(there)


def taken(proxy: FaultProxy) -> int:
    """Writes that came through, of the lease as well."""
    return sum(call.writes and 200 <= call.status < 300 for call in list(proxy.calls))


async def other_waits(proxy: FaultProxy) -> None:
    """Until the operator behind it has seen the lease of another."""
    before = proxy.count("get", "leases")
    while proxy.count("get", "leases") < before + 2:
        await asyncio.sleep(0.1)


async def test_what_the_conductor_granted_while_no_operator_ran_is_mirrored_without_a_storm(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    async with running_job(api_server, namespace, tmp_path) as (here, there, proxy, first):
        first.kill()
        await first.process.wait()
        for role in (Role.TRAINING, Role.ROLLOUT, Role.TRAINING):
            await there.grant_by_itself("cell-0", role)
        before = writes(proxy)
        await here.start(proxy.url)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 4))
        assert [order.epoch for order in there.agents["cell-0"].orders] == [2, 3, 4], "none was delivered again"
        assert writes(proxy) - before < 10


async def test_an_operator_that_is_told_to_stop_gives_the_lease_back_at_once(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with running_job(api_server, namespace, tmp_path) as (here, _, _, first):
        assert await first.stop() == 0, here.last_words()
        assert (await here.lease())["spec"].get("holderIdentity", "") == ""


async def _holder_changes(here: Cluster) -> bool:
    return bool((await here.lease())["spec"]["leaseTransitions"] > 1)


async def _term(there: Processes) -> int:
    return there.conductor.term


async def answer[T](value: T) -> T:
    return value


def _done(proxy: FaultProxy, path: str) -> bool:
    """The API server has answered what was asked last."""
    resource = path.strip("/").partition("/")[0] + ("/status" if path.endswith("/status") else "")
    return next(call.status for call in reversed(list(proxy.calls)) if call.resource == resource) > 0
