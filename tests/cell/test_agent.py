"""A live agent between scripted processes, over real HTTP."""

import asyncio

import pytest

from tests.cell.world import Cell, World, living
from tidemill.wire.cell import CellPhase, Role
from tidemill.wire.conductor import Grant
from tidemill.wire.engine import Generate, Sampling
from tidemill.wire.http import Board, Refused, Rejected, Unreachable
from tidemill_cell.children import Health

ROLLOUT, TRAINING = Role.ROLLOUT, Role.TRAINING


async def test_a_cell_that_comes_up_withdraws_an_old_route_loads_verified_weights_and_is_routed() -> None:
    async with living() as cell:
        state = await cell.ready(ROLLOUT, 0)
        assert cell.world.asked == ["drain 0", "weights 0", "route 0 0"]
        assert (state.policy_version, state.weights_digest) == (0, "digest-0")
        assert state.last_flip is None  # nothing was flipped
        assert state.trainer_incarnation == "trainer-incarnation"
        assert state.trainer_url.startswith("http://127.0.0.1:")


async def test_a_flip_there_and_back_runs_its_phases_in_order_and_tells_their_times() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.asked.clear()
        cell.world.moved_with_tokens = 3
        accepted = await cell.order(TRAINING, 1, "standalone-0", "cell-2")
        assert (accepted.phase, accepted.role, accepted.epoch) == (CellPhase.FLIPPING, ROLLOUT, 0)
        there = await cell.ready(TRAINING, 1)
        assert cell.world.asked == ["drain 1 standalone-0,cell-2", "sleep", "join 1"]
        assert cell.world.core_url_joined == there.trainer_url  # of the scripted core, which is the same process here
        assert there.last_flip is not None
        assert list(there.last_flip.phases) == ["drain", "sleep", "join"]
        assert (there.last_flip.to, there.last_flip.epoch, there.last_flip.calls_in_flight) == (TRAINING, 1, 3)
        assert 0 < sum(there.last_flip.phases.values()) <= there.last_flip.seconds
        assert there.policy_version == -1

        cell.world.asked.clear()
        await cell.world.publish(1)
        await cell.order(ROLLOUT, 2)
        back = await cell.ready(ROLLOUT, 2)
        assert cell.world.asked == ["leave 2", "wake", "weights 1", "route 2 1"]
        assert back.last_flip is not None
        assert list(back.last_flip.phases) == ["leave", "wake", "weights", "route"]
        assert (back.last_flip.to, back.last_flip.calls_in_flight, back.policy_version) == (ROLLOUT, 0, 1)


async def test_the_core_joins_itself() -> None:
    async with living("cell-0") as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        assert cell.world.core_url_joined == ""


async def test_a_standalone_cell_serves_without_a_trainer_and_refuses_to_train() -> None:
    async with living("standalone-0") as cell:
        state = await cell.ready(ROLLOUT, 0)
        assert (state.trainer_url, state.trainer_incarnation) == ("", "")
        with pytest.raises(Refused, match="never trains"):
            await cell.order(TRAINING, 1)


async def test_an_older_order_and_a_contradicting_one_are_refused_and_a_repeated_one_does_nothing() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 5)
        state = await cell.ready(TRAINING, 5)
        asked = list(cell.world.asked)
        with pytest.raises(Refused, match="epoch 4 is older than epoch 5"):
            await cell.order(ROLLOUT, 4)
        with pytest.raises(Refused, match="cannot also be Rollout"):
            await cell.order(ROLLOUT, 5)
        repeated = await cell.order(TRAINING, 5)
        assert (repeated.phase, repeated.role, repeated.epoch, repeated.last_flip) == (state.phase, state.role, state.epoch, state.last_flip)
        assert cell.world.asked == asked


async def test_a_missed_order_is_learnt_from_the_answer_to_a_report() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.grant = Grant("cell-1", TRAINING, 3, ("cell-2",))
        await cell.ready(TRAINING, 3)
        assert "drain 3 cell-2" in cell.world.asked
        await cell.until(lambda: (cell.world.reports[-1].role, cell.world.reports[-1].epoch) == (TRAINING, 3), "the conductor knows")


@pytest.mark.parametrize("phase", ["drain", "sleep", "join"])
async def test_a_newer_order_in_each_phase_of_a_flip_to_training_takes_the_cell_back(phase: str) -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        script = cell.world.script(phase)
        script.hold, script.begun = True, 0
        await cell.order(TRAINING, 1)
        await cell.until(lambda: script.begun == 1, f"in {phase}")
        await cell.order(ROLLOUT, 2)
        script.hold = False
        script.released.set()
        state = await cell.ready(ROLLOUT, 2)
        assert cell.world.route is not None
        assert (cell.world.route.epoch, cell.world.asleep, cell.world.joined) == (2, False, -1)
        assert state.last_flip is None  # it never left its role


async def test_a_drain_that_hangs_does_not_hold_up_a_newer_order() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        drain = cell.world.script("drain")
        drain.hold, drain.begun = True, 0
        await cell.order(TRAINING, 1)
        await cell.until(lambda: drain.begun == 1, "draining")
        await cell.order(ROLLOUT, 2)
        await cell.ready(ROLLOUT, 2)


@pytest.mark.parametrize("phase", ["leave", "wake", "weights", "route"])
async def test_a_newer_order_in_each_phase_of_a_flip_to_rollout_takes_the_cell_back(phase: str) -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        script = cell.world.script(phase)
        script.hold, script.begun = True, 0
        await cell.order(ROLLOUT, 2)
        await cell.until(lambda: script.begun == 1, f"in {phase}")
        await cell.order(TRAINING, 3)
        script.hold = False
        script.released.set()
        await cell.ready(TRAINING, 3)
        assert (cell.world.route, cell.world.asleep, cell.world.joined) == (None, True, 3)


@pytest.mark.parametrize("phase", ["drain", "sleep", "join", "leave", "wake", "weights", "snapshot", "route"])
@pytest.mark.parametrize("how", ["failures", "refusals"])
async def test_a_phase_that_fails_is_tried_again(phase: str, how: str) -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        setattr(cell.world.script(phase), how, 1)
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        await cell.order(ROLLOUT, 2)
        await cell.ready(ROLLOUT, 2)
        assert getattr(cell.world.script(phase), how) == 0


@pytest.mark.parametrize(("phase", "child"), [("sleep", "engine"), ("leave", "trainer")])
async def test_a_child_that_does_not_obey_is_restarted(phase: str, child: str) -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.script(phase).failures = 2
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        await cell.order(ROLLOUT, 2)
        await cell.ready(ROLLOUT, 2)
        restarted = {"engine": cell.engine, "trainer": cell.trainer}[child]
        assert phase in restarted.restarts[0]


async def test_a_publication_is_loaded_in_place_while_a_call_is_in_flight() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        call = asyncio.create_task(cell.call(0))
        await cell.until(lambda: len(cell.world.bodies) == 1, "the call has reached the engine")
        cell.world.asked.clear()
        await cell.world.publish(1)
        state = await cell.state_when(lambda s: s.policy_version == 1, "version 1")
        assert state.weights_digest == "digest-1"
        await cell.until(lambda: cell.world.asked == ["weights 1", "route 0 1"], "routed with version 1")  # and was never drained
        cell.world.tokens.set()
        assert [token for run in await call for token in run.token_ids] == [7, 8]


async def test_a_version_that_advances_while_weights_are_pulled_is_pulled_too_before_the_route() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        weights = cell.world.script("weights")
        weights.hold, weights.begun = True, 0
        await cell.order(ROLLOUT, 2)
        await cell.until(lambda: weights.begun == 1, "pulling version 0")
        tide = cell.world.script("tide")
        polls = tide.begun
        await cell.world.publish(1)
        await cell.until(lambda: tide.begun > polls, "the agent has seen version 1")
        weights.hold = False
        weights.released.set()
        await cell.ready(ROLLOUT, 2)
        assert [a for a in cell.world.asked if a.startswith(("weights", "route"))][-3:] == ["weights 0", "weights 1", "route 2 1"]


@pytest.mark.parametrize("who", ["engine", "core"])
async def test_a_wrong_digest_keeps_the_cell_out_of_routing_until_it_is_right(who: str) -> None:
    world = World()
    world.loads_digest, world.snapshot_digest = ("wrong", "") if who == "engine" else ("", "wrong")
    async with living(world=world) as cell:
        tried = world.script("weights" if who == "engine" else "snapshot")
        await cell.until(lambda: tried.begun >= 3, "tried again")
        state = await cell.client.state()
        assert (world.route, state.phase, state.policy_version) == (None, CellPhase.STARTING, -1)
        assert "wrong" in state.reason
        assert "digest-0" in state.reason
        assert ("weights 0" in world.asked) is (who == "engine")  # what is known to be wrong is not even loaded
        world.loads_digest = world.snapshot_digest = ""
        state = await cell.ready(ROLLOUT, 0)
        assert state.reason == ""
        assert world.route is not None


async def test_a_publication_that_loads_wrong_withdraws_the_route() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.loads_digest = "wrong"
        await cell.world.publish(1)
        await cell.state_when(lambda s: s.phase is CellPhase.STARTING, "not in effect")
        await cell.until(lambda: cell.world.route is None, "withdrawn")
        with pytest.raises(Refused):
            await cell.call(0)
        cell.world.loads_digest = ""
        await cell.ready(ROLLOUT, 0)
        assert cell.world.route is not None


async def test_a_publication_the_core_cannot_serve_yet_leaves_the_cell_serving() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        snapshot = cell.world.script("snapshot")
        snapshot.begun, snapshot.failures = 0, 2
        asked = len(cell.world.asked)
        await cell.world.publish(1)
        await cell.state_when(lambda s: s.policy_version == 1, "version 1")
        await cell.until(lambda: cell.world.asked[asked:] == ["weights 1", "route 0 1"], "routed, and not drained")


async def test_nothing_is_served_before_the_first_publication() -> None:
    world = World()
    world.published = None
    async with living(world=world) as cell:
        await cell.state_when(lambda s: "no weights are published" in s.reason, "waits for weights")
        await world.publish(0)
        await cell.ready(ROLLOUT, 0)


async def test_an_engine_that_dies_in_rollout_is_not_routed_until_its_successor_holds_the_weights() -> None:
    async with living() as cell:
        first = await cell.ready(ROLLOUT, 0)
        cell.world.asked.clear()
        cell.engine_dies()
        down = await cell.state_when(lambda s: s.phase is CellPhase.STARTING and s.policy_version == -1, "down")
        assert (down.role, down.epoch) == (ROLLOUT, 0)
        await cell.until(lambda: cell.world.route is None, "withdrawn")
        cell.engine_comes_up()
        again = await cell.ready(ROLLOUT, 0)
        assert cell.world.asked == ["drain 0", "weights 0", "route 0 0"]
        assert again.engine_incarnation != first.engine_incarnation


async def test_an_engine_that_dies_while_the_cell_trains_is_put_to_sleep_and_training_goes_on() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        cell.world.asked.clear()
        cell.engine_dies()
        cell.engine_comes_up()
        await cell.until(lambda: cell.world.asked == ["sleep"], "asleep again")
        assert (await cell.client.state()).phase is CellPhase.READY


async def test_a_trainer_that_dies_in_training_joins_again_under_the_same_epoch() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        cell.world.asked.clear()
        cell.trainer_dies()
        down = await cell.state_when(lambda s: s.phase is CellPhase.STARTING, "down")
        assert (down.role, down.epoch, down.trainer_incarnation, down.trainer_url) == (TRAINING, 1, "", "")
        cell.trainer.up()
        await cell.ready(TRAINING, 1)
        assert cell.world.asked == ["join 1"]


async def test_a_trainer_that_dies_in_rollout_disturbs_nothing() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.asked.clear()
        cell.trainer_dies()
        state = await cell.state_when(lambda s: s.trainer_url == "", "the trainer is away")
        assert state.phase is CellPhase.READY
        assert cell.world.asked == []


async def test_a_child_that_is_given_up_fails_the_cell_with_the_reason() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.engine.reason = "engine ended with code 1; last lines: out of memory"
        cell.engine.down(Health.FAILED)
        state = await cell.state_when(lambda s: s.phase is CellPhase.FAILED, "failed")
        assert "out of memory" in state.reason
        await cell.until(lambda: cell.world.route is None, "withdrawn")
        await cell.until(lambda: cell.world.reports[-1].phase is CellPhase.FAILED, "the conductor knows")


async def test_a_conductor_that_is_away_for_a_while_changes_nothing_and_is_told_afterwards() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.script("report").failures = cell.world.script("tide").failures = 30
        told = len(cell.world.reports)
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        await cell.order(ROLLOUT, 2)
        await cell.ready(ROLLOUT, 2)
        await cell.until(lambda: len(cell.world.reports) > told and cell.world.reports[-1].epoch == 2, "told")
        await cell.world.publish(1)
        await cell.state_when(lambda s: s.policy_version == 1, "it follows the tide again")


async def test_a_conductor_that_was_restarted_and_counts_its_tides_anew_is_followed() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        await cell.world.publish(1)
        await cell.world.publish(2)
        await cell.state_when(lambda s: s.policy_version == 2, "version 2")
        asked, lost, before = cell.world.script("tide"), cell.world.script("tide answer"), cell.world.tides
        await cell.until(lambda: asked.begun > lost.begun, "the former conductor is being asked")
        lost.failures, cell.world.tides = 1, Board()
        await before.bump()  # what was asked of the former conductor ends without an answer
        await cell.until(lambda: lost.failures == 0, "the former conductor is gone")
        await cell.world.publish(3)
        await cell.state_when(lambda s: s.policy_version == 3, "version 3")


async def test_a_gateway_that_has_forgotten_its_routes_is_told_again() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.route = None
        await cell.until(lambda: cell.world.route is not None, "routed again")


async def test_a_cell_in_training_puts_no_route() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        puts = cell.world.script("route").begun
        reports = len(cell.world.reports)
        await cell.until(lambda: len(cell.world.reports) >= reports + 3, "some time has passed")
        assert cell.world.script("route").begun == puts


async def test_calls_of_an_older_epoch_or_in_training_are_refused_without_reaching_the_engine() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        with pytest.raises(Refused, match="not in rollout"):
            await cell.call(1)
        await cell.order(ROLLOUT, 2)
        await cell.ready(ROLLOUT, 2)
        with pytest.raises(Refused, match="epoch 1 is older than epoch 2"):
            await cell.call(1)
        assert cell.world.bodies == []
        cell.world.tokens.set()
        assert sum(len(run.token_ids) for run in await cell.call(2)) == 2


async def test_a_cell_that_is_ordered_away_refuses_new_calls_at_once() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.script("drain").hold = True
        await cell.order(TRAINING, 1)
        with pytest.raises(Refused):
            await cell.call(0)


async def test_a_call_that_is_still_there_after_the_drain_is_cut_before_the_engine_sleeps() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        call = asyncio.create_task(_tokens_until_cut(cell))
        await cell.until(lambda: len(cell.world.bodies) == 1, "the call has reached the engine")
        await cell.order(TRAINING, 1)
        await cell.until(call.done, "cut")
        assert call.result() == [7]
        await cell.ready(TRAINING, 1)
        await cell.until(lambda: cell.world.aborted == 1, "the engine knows")


async def test_tokens_and_paths_that_do_not_exist() -> None:
    async with living() as cell:
        stranger = type(cell.client)(cell.client.base_url, "another token", cell.client._session)
        with pytest.raises(Rejected, match="bearer token"):
            await stranger.state()
        with pytest.raises(Rejected, match="is not a number"):
            await cell.client.call("GET", "/v1/state", type(await cell.client.state()), query={"after": "soon"})


async def test_metrics_and_health_tell_role_and_flips() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        await cell.order(ROLLOUT, 2)
        await cell.ready(ROLLOUT, 2)
        async with cell.client._session.get(cell.client.base_url + "/metrics") as response:
            text = await response.text()
        assert 'tidemill_cell_role{job="tiny",cell="cell-1",role="Rollout"} 1.0' in text
        assert 'tidemill_cell_flips_total{job="tiny",cell="cell-1",to="Rollout"} 1.0' in text  # it came up in training, which is none
        assert 'phase="leave"' in text
        async with cell.client._session.get(cell.client.base_url + "/healthz") as response:
            assert response.status == 200


async def _tokens_until_cut(cell: Cell) -> list[int]:
    tokens: list[int] = []
    try:
        async for sampled in cell.calls.generate(Generate("call-1", (1,), Sampling(max_tokens=8), 0), idle_seconds=600.0):
            tokens += sampled.token_ids
    except Unreachable:
        return tokens
    raise AssertionError("the stream ended as if it were complete")
