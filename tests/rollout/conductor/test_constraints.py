"""What a person wants of single cells, told by whoever holds the term: pins and cordons."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.world import World, settings, world
from tidemill.telemetry.events import FlipEnded
from tidemill.wire.cell import CellPhase, Role
from tidemill.wire.conductor import Authority, CellTide, Constraints, Tide
from tidemill.wire.http import Refused, Rejected

ROLLOUT, TRAINING = Role.ROLLOUT, Role.TRAINING


def cell(tide: Tide, name: str) -> CellTide:
    return next(c for c in tide.cells if c.cell == name)


@asynccontextmanager
async def controlled(job: World, holder: str = "operator") -> AsyncIterator[Callable[[], int]]:
    """Hold the term, without deciding anything, until the block ends. The term's number is asked for when it is needed."""
    held = await job.client.authority(Authority(holder))
    yield lambda: held.term
    job.conductor.holder.expires = 0.0  # as when nobody renews it


async def test_a_satellite_that_is_pinned_to_rollout_never_trains_and_the_others_do(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        async with controlled(job) as term:
            grant = await job.client.constrain("cell-1", Constraints(term(), pin=ROLLOUT))
            assert (grant.role, grant.epoch) == (ROLLOUT, 1)
        tide = await job.to_the_end()
        assert cell(tide, "cell-1").pinned is ROLLOUT
        assert {f.cell for f in job.of(FlipEnded)} == {"cell-0", "cell-2"}
        check(job)


async def test_a_cell_that_is_pinned_to_rollout_while_it_trains_returns_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        tide = await job.until(lambda t: cell(t, "cell-0").settled and cell(t, "cell-0").granted_role is TRAINING)
        epoch = cell(tide, "cell-0").granted_epoch
        async with controlled(job) as term:
            grant = await job.client.constrain("cell-0", Constraints(term(), pin=ROLLOUT))
            assert (grant.role, grant.epoch) == (ROLLOUT, epoch + 1)
            stuck = await job.until(lambda t: cell(t, "cell-0").settled)
            await job.client.constrain("cell-0", Constraints(term()))
        assert stuck.step < stuck.steps
        await job.to_the_end()
        check(job)


async def test_a_satellite_that_is_pinned_to_training_leaves_before_the_others(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        async with controlled(job) as term:
            await job.client.constrain("cell-2", Constraints(term(), pin=TRAINING))
        await job.to_the_end()
        leaving = [f.cell for f in sorted(job.of(FlipEnded), key=lambda f: f.time) if f.to == "Training"]
        assert next(name for name in leaving if name != "cell-0") == "cell-2"
        check(job)


async def test_a_cordoned_cell_is_told_where_its_calls_go_gets_nothing_and_trains_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 8)
        async with controlled(job) as term:
            grant = await job.client.constrain("cell-1", Constraints(term(), cordon=True))
            assert (grant.role, grant.epoch, grant.destinations) == (ROLLOUT, 2, ("cell-0",))
            repeated = await job.client.constrain("cell-1", Constraints(term(), cordon=True))
            assert repeated == grant
            tide = await job.until(lambda t: cell(t, "cell-1").cordoned)
            assert not cell(tide, "cell-1").usable
        job.sandboxes.gate.set()
        await job.to_the_end()  # the core alone carries it
        assert {f.cell for f in job.of(FlipEnded)} == {"cell-0"}
        check(job)


async def test_a_cell_that_is_no_longer_cordoned_serves_and_trains_again(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        async with controlled(job) as term:
            await job.client.constrain("cell-1", Constraints(term(), cordon=True))
            await job.client.constrain("cell-1", Constraints(term()))
            await job.until(lambda t: cell(t, "cell-1").usable and cell(t, "cell-1").settled)
        await job.to_the_end()
        assert {f.cell for f in job.of(FlipEnded)} == {"cell-0", "cell-1"}
        check(job)


async def test_a_training_cell_that_is_cordoned_returns_first_and_nothing_is_lost_or_counted_twice(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        await job.until(lambda t: cell(t, "cell-1").settled and cell(t, "cell-1").granted_role is TRAINING)
        async with controlled(job) as term:
            grant = await job.client.constrain("cell-1", Constraints(term(), cordon=True))
            assert grant.role is ROLLOUT
        await job.to_the_end()
        check(job)


async def test_constraints_outlive_the_conductor(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        async with controlled(job) as term:
            await job.client.constrain("cell-1", Constraints(term(), pin=ROLLOUT))
            await job.client.constrain("cell-2", Constraints(term(), cordon=True))
        await job.kill_conductor()
        await job.start_conductor()
        tide = await job.to_the_end()
        assert (cell(tide, "cell-1").pinned, cell(tide, "cell-2").cordoned) == (ROLLOUT, True)
        assert {f.cell for f in job.of(FlipEnded)} == {"cell-0"}
        check(job)


async def test_what_makes_no_sense_or_comes_from_nobody_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path, settings(standalone=1)) as job:
        with pytest.raises(Refused, match="term 0: the current term is 0, and it has expired"):
            await job.client.constrain("cell-1", Constraints(0, cordon=True))
        async with controlled(job) as term:
            with pytest.raises(Refused, match="the current term is 1"):
                await job.client.constrain("cell-1", Constraints(term() - 1, cordon=True))
            with pytest.raises(Rejected, match="standalone cell has no trainer"):
                await job.client.constrain("standalone-0", Constraints(term(), pin=TRAINING))
            with pytest.raises(Rejected, match="no such cell"):
                await job.client.constrain("cell-9", Constraints(term()))
        await job.to_the_end()
        check(job)


async def test_a_cell_whose_agent_is_leaving_gets_no_executions_no_grants_and_no_calls(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        leaver = job.agents[2]
        leaver.stuck = True
        leaver.state = msgspec.structs.replace(leaver.state, phase=CellPhase.LEAVING)
        tide = await job.until(lambda t: cell(t, "cell-2").state is not None and cell(t, "cell-0").granted_role is TRAINING)
        assert not cell(tide, "cell-2").usable
        grants = {g.cell: g for g in await job.client.grants()}
        assert grants["cell-0"].destinations == ("cell-1",)
        await job.to_the_end()
        assert {f.cell for f in job.of(FlipEnded)} == {"cell-0", "cell-1"}
        check(job)
