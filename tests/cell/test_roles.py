"""The flip as a state machine."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.wire.cell import CellKind, CellPhase, Role, RoleOrder
from tidemill.wire.http import Refused
from tidemill_cell import roles
from tidemill_cell.roles import Acknowledged, Blocked, Engine, Phase, Routed, Standing, Tidings, Trainer, Weights

V1, V2 = Weights(1, "one"), Weights(2, "two")
TIDINGS = Tidings(V1, "http://core")
SERVING = Standing(Engine.AWAKE, V1, Trainer.IDLE, -1, Routed(4, 1), may_be_routed=True)
TRAINING = Standing(Engine.ASLEEP, None, Trainer.JOINED, 5, None, may_be_routed=False, joined_core="http://core")


def training(epoch: int) -> RoleOrder:
    return RoleOrder(Role.TRAINING, epoch)


def rollout(epoch: int) -> RoleOrder:
    return RoleOrder(Role.ROLLOUT, epoch)


def walk(order: RoleOrder, stands: Standing, tidings: Tidings = TIDINGS) -> tuple[list[Phase | Blocked], Standing]:
    """Every phase succeeds, until there is none."""
    path: list[Phase | Blocked] = []
    while (step := roles.next_phase(order, stands, tidings)) is not None:
        path.append(step)
        assert len(path) < 10
        if isinstance(step, Blocked):
            break
        stands = roles.after(step, order, stands, tidings)
    return path, stands


def test_a_flip_to_training_drains_sleeps_and_joins() -> None:
    path, stands = walk(training(5), SERVING)
    assert path == [Phase.DRAIN, Phase.SLEEP, Phase.JOIN]
    assert stands == TRAINING


def test_a_flip_to_rollout_leaves_wakes_loads_weights_and_only_then_is_routed() -> None:
    path, stands = walk(rollout(6), TRAINING)
    assert path == [Phase.LEAVE, Phase.WAKE, Phase.WEIGHTS, Phase.ROUTE]
    assert stands == replace(SERVING, routed=Routed(6, 1))


def test_a_publication_in_rollout_updates_in_place_and_then_the_route() -> None:
    path, stands = walk(rollout(4), SERVING, Tidings(V2, "http://core"))
    assert path == [Phase.WEIGHTS, Phase.ROUTE]
    assert stands.routed == Routed(4, 2)


def test_a_published_version_with_another_digest_is_pulled_again() -> None:
    assert roles.next_phase(rollout(4), SERVING, Tidings(Weights(1, "other"), "http://core")) is Phase.WEIGHTS


@pytest.mark.parametrize(
    ("stands", "first"),
    [
        (replace(SERVING, engine=Engine.DOWN, weights=None), Phase.DRAIN),
        (replace(SERVING, weights=None), Phase.DRAIN),
        (replace(SERVING, engine=Engine.DOWN, weights=None, routed=None, may_be_routed=False), Blocked("the engine is starting")),
        (replace(SERVING, engine=Engine.UNSURE, routed=None, may_be_routed=False), Phase.WAKE),
        (replace(SERVING, trainer=Trainer.UNSURE), Phase.LEAVE),
        (replace(SERVING, trainer=Trainer.DOWN), None),
        (replace(SERVING, routed=None), Phase.ROUTE),
    ],
)
def test_what_comes_first_in_rollout(stands: Standing, first: Phase | Blocked | None) -> None:
    assert roles.next_phase(rollout(4), stands, TIDINGS) == first


@pytest.mark.parametrize(
    ("stands", "first"),
    [
        (replace(TRAINING, trainer=Trainer.DOWN, joined_epoch=-1), Blocked("the trainer is starting")),
        (replace(TRAINING, trainer=Trainer.IDLE, joined_epoch=-1), Phase.JOIN),
        (replace(TRAINING, joined_epoch=3), Phase.JOIN),
        (replace(TRAINING, joined_core="http://where-the-core-was"), Phase.JOIN),
        (replace(TRAINING, engine=Engine.AWAKE), Phase.SLEEP),
        (replace(TRAINING, engine=Engine.UNSURE), Phase.SLEEP),
        (replace(TRAINING, may_be_routed=True), Phase.DRAIN),
        (TRAINING, None),
    ],
)
def test_what_comes_first_in_training(stands: Standing, first: Phase | Blocked | None) -> None:
    assert roles.next_phase(training(5), stands, TIDINGS) == first


def test_nothing_is_pulled_or_joined_before_there_is_something_to_pull_from_or_to_join() -> None:
    assert isinstance(roles.next_phase(rollout(4), replace(SERVING, weights=None, routed=None, may_be_routed=False), Tidings()), Blocked)
    assert isinstance(roles.next_phase(rollout(4), SERVING, Tidings(V2, "")), Blocked)
    assert isinstance(roles.next_phase(training(5), replace(TRAINING, trainer=Trainer.IDLE), Tidings(V1, "")), Blocked)


@pytest.mark.parametrize(
    ("done", "back"),
    [
        (0, []),
        (1, [Phase.ROUTE]),
        (2, [Phase.WAKE, Phase.WEIGHTS, Phase.ROUTE]),
        (3, [Phase.LEAVE, Phase.WAKE, Phase.WEIGHTS, Phase.ROUTE]),
    ],
)
def test_every_phase_of_a_flip_to_training_has_a_way_back(done: int, back: list[Phase]) -> None:
    stands = SERVING
    for phase in (Phase.DRAIN, Phase.SLEEP, Phase.JOIN)[:done]:
        stands = roles.after(phase, training(5), stands, TIDINGS)
    path, stands = walk(rollout(6), stands)
    assert path == (back or [Phase.ROUTE])
    assert stands == replace(SERVING, routed=Routed(6, 1))


@pytest.mark.parametrize("done", range(5))
def test_every_phase_of_a_flip_to_rollout_has_a_way_back(done: int) -> None:
    stands = TRAINING
    for phase in (Phase.LEAVE, Phase.WAKE, Phase.WEIGHTS, Phase.ROUTE)[:done]:
        stands = roles.after(phase, rollout(6), stands, TIDINGS)
    _, stands = walk(training(7), stands)
    assert stands == replace(TRAINING, joined_epoch=7)


def test_a_cordoned_cell_leaves_training_is_drained_and_does_nothing_more_until_that_is_taken_back() -> None:
    cordoned = replace(TIDINGS, cordoned=True)
    assert walk(rollout(6), TRAINING, cordoned)[0] == [Phase.LEAVE]
    path, stands = walk(rollout(6), SERVING, cordoned)
    assert path == [Phase.DRAIN]
    assert walk(rollout(6), stands)[0] == [Phase.ROUTE]


def test_a_core_whose_address_is_not_known_for_a_while_changes_nothing() -> None:
    assert roles.next_phase(training(5), TRAINING, Tidings(V1, "")) is None


@pytest.mark.parametrize(("stands", "handed_over"), [(SERVING, [Phase.DRAIN]), (TRAINING, [Phase.LEAVE]), (Standing(), [Phase.DRAIN])])
def test_before_its_end_a_cell_hands_over_what_it_has_and_nothing_else(stands: Standing, handed_over: list[Phase]) -> None:
    done = []
    while (phase := roles.before_the_end(stands)) is not None:
        done.append(phase)
        stands = roles.after(phase, training(5), stands, TIDINGS)
    assert done == handed_over


def test_an_order_is_news_once() -> None:
    assert roles.is_news(None, rollout(0), CellKind.CORE)
    assert roles.is_news(rollout(0), training(1), CellKind.CORE)
    assert not roles.is_news(training(1), training(1), CellKind.CORE)
    assert not roles.is_news(training(1), RoleOrder(Role.TRAINING, 1, ("cell-2",)), CellKind.CORE)


@pytest.mark.parametrize(
    ("held", "order", "kind", "said"),
    [
        (training(5), rollout(4), CellKind.CORE, "epoch 4 is older than epoch 5"),
        (training(5), training(4), CellKind.CORE, "epoch 4 is older than epoch 5"),
        (training(5), rollout(5), CellKind.CORE, "cannot also be Rollout"),
        (None, training(1), CellKind.STANDALONE, "standalone"),
    ],
)
def test_an_order_that_must_not_be_obeyed_is_refused_with_the_reason(held: RoleOrder | None, order: RoleOrder, kind: CellKind, said: str) -> None:
    with pytest.raises(Refused, match=said):
        roles.is_news(held, order, kind)


@pytest.mark.parametrize(
    ("order", "stands", "epoch", "served"),
    [
        (rollout(4), SERVING, 4, True),
        (rollout(4), SERVING, 3, False),
        (rollout(5), SERVING, 4, True),  # until the gateway knows the newer route
        (rollout(5), replace(SERVING, routed=Routed(5, 1)), 4, False),
        (rollout(4), replace(SERVING, routed=None), 4, True),  # the gate opens before the gateway hears of the route
        (training(5), SERVING, 4, False),
        (training(5), SERVING, 5, False),
        (rollout(4), replace(SERVING, weights=None), 4, False),
        (rollout(4), replace(SERVING, engine=Engine.ASLEEP), 4, False),
        (None, SERVING, 4, False),
    ],
)
def test_which_calls_are_served(order: RoleOrder | None, stands: Standing, epoch: int, served: bool) -> None:
    assert (roles.refusal(order, stands, epoch) == "") is served


@pytest.mark.parametrize(
    ("order", "acknowledged", "stands", "phase"),
    [
        (None, None, Standing(), CellPhase.STARTING),
        (rollout(4), None, Standing(), CellPhase.STARTING),
        (rollout(4), Acknowledged(Role.ROLLOUT, 4), SERVING, CellPhase.READY),
        (rollout(4), Acknowledged(Role.ROLLOUT, 4), replace(SERVING, engine=Engine.DOWN), CellPhase.STARTING),
        (training(5), Acknowledged(Role.ROLLOUT, 4), SERVING, CellPhase.FLIPPING),
        (training(5), Acknowledged(Role.TRAINING, 5), TRAINING, CellPhase.READY),
        (training(5), Acknowledged(Role.TRAINING, 5), replace(TRAINING, engine=Engine.DOWN), CellPhase.READY),
        (training(5), Acknowledged(Role.TRAINING, 5), replace(TRAINING, trainer=Trainer.DOWN), CellPhase.STARTING),
    ],
)
def test_what_the_cell_says_of_itself(order: RoleOrder | None, acknowledged: Acknowledged | None, stands: Standing, phase: CellPhase) -> None:
    assert roles.cell_phase(order, acknowledged, stands) is phase


@dataclass
class World:
    """What is really so, which the agent only knows through answers. Nothing here ever looks at `Standing`."""

    published: Weights = V1
    engine_up: bool = False
    engine_awake: bool = False
    loaded: Weights | None = None
    trainer_up: bool = False
    joined_epoch: int = -1
    route: Routed | None = None

    def do(self, phase: Phase, order: RoleOrder) -> None:
        match phase:
            case Phase.DRAIN:
                self.route = None
            case Phase.SLEEP if self.engine_up:
                self.engine_awake, self.loaded = False, None
            case Phase.WAKE if self.engine_up:
                self.engine_awake = True
            case Phase.WEIGHTS if self.engine_up:
                assert self.engine_awake
                self.loaded = self.published
            case Phase.JOIN if self.trainer_up:
                assert self.route is None
                assert not self.engine_awake
                self.joined_epoch = order.epoch
            case Phase.LEAVE:
                self.joined_epoch = -1
            case Phase.ROUTE:
                assert self.loaded == self.published
                assert self.engine_awake
                assert self.joined_epoch == -1
                self.route = Routed(order.epoch, self.published.version)


@dataclass
class Agent:
    order: RoleOrder
    stands: Standing
    world: World

    def look(self) -> None:
        if self.world.engine_up and self.stands.engine is Engine.DOWN:
            self.stands = roles.engine_up(self.stands)
        if not self.world.engine_up:
            self.stands = roles.engine_down(self.stands)
        if self.world.trainer_up and self.stands.trainer is Trainer.DOWN:
            self.stands = roles.trainer_up(self.stands)
        if not self.world.trainer_up:
            self.stands = roles.trainer_down(self.stands)

    def step(self, outcome: str) -> bool:
        """One turn of the loop; whether there was something to do."""
        self.look()
        tidings = Tidings(self.world.published, "http://core")
        phase = roles.next_phase(self.order, self.stands, tidings)
        if not isinstance(phase, Phase):
            return phase is not None
        if outcome != "lost request":
            self.world.do(phase, self.order)
        if outcome == "answer":
            self.stands = roles.after(phase, self.order, self.stands, tidings)
        else:
            self.stands = roles.after_failure(phase, self.stands)
        return True

    def accept(self, order: RoleOrder) -> None:
        try:
            if roles.is_news(self.order, order, CellKind.CORE):
                self.order = order
        except Refused:
            pass


@pytest.mark.parametrize(
    ("phase", "before", "afterwards"),
    [
        (Phase.DRAIN, SERVING, SERVING),
        (Phase.SLEEP, SERVING, replace(SERVING, engine=Engine.UNSURE, weights=None)),
        (Phase.JOIN, replace(TRAINING, trainer=Trainer.IDLE), replace(TRAINING, trainer=Trainer.UNSURE)),
        (Phase.LEAVE, TRAINING, replace(TRAINING, trainer=Trainer.UNSURE)),
        (Phase.WAKE, TRAINING, replace(TRAINING, engine=Engine.UNSURE)),
        (Phase.WEIGHTS, SERVING, replace(SERVING, weights=None)),
        (Phase.ROUTE, replace(SERVING, may_be_routed=False), SERVING),
    ],
)
def test_a_phase_without_an_answer_leaves_unsure_what_it_may_have_changed(phase: Phase, before: Standing, afterwards: Standing) -> None:
    assert roles.after_failure(phase, before) == afterwards


STEPS = st.sampled_from(["answer", "answer", "answer", "answer", "lost request", "lost answer"])
FAULTS = st.sampled_from(["publication", "engine dies", "engine is up", "trainer dies", "trainer is up"])
HAPPENINGS = st.one_of(
    STEPS,
    STEPS,
    STEPS,
    FAULTS,
    st.builds(RoleOrder, st.sampled_from(Role), st.integers(0, 40)),
)


@settings(max_examples=400)
@given(st.lists(HAPPENINGS, max_size=60))
def test_whatever_happens_the_cell_ends_in_the_role_of_the_newest_order_and_never_does_both(happenings: list[str | RoleOrder]) -> None:
    world = World(route=Routed(0, 0))  # an earlier life of the agent left a route behind
    world.engine_up = world.engine_awake = world.trainer_up = True
    agent = Agent(rollout(0), Standing(), world)
    newest = 0
    for happening in happenings:
        match happening:
            case RoleOrder():
                before = agent.order
                agent.accept(happening)
                newest = max(newest, happening.epoch)
                assert agent.order.epoch >= before.epoch
                assert agent.order.epoch > before.epoch or agent.order == before
            case "publication":
                world.published = Weights(world.published.version + 1, f"digest {world.published.version + 1}")
            case "engine dies":
                world.engine_up, world.engine_awake, world.loaded = False, False, None
                agent.look()
            case "engine is up" if not world.engine_up:
                world.engine_up = world.engine_awake = True
            case "trainer dies":
                world.trainer_up, world.joined_epoch = False, -1
                agent.look()
            case "trainer is up":
                world.trainer_up = True
            case "answer" | "lost request" | "lost answer":
                agent.step(happening)
    world.trainer_up = True
    if not world.engine_up:
        world.engine_up = world.engine_awake = True
    turns = 0
    while agent.step("answer"):
        turns += 1
        assert turns <= 8
    assert agent.order.epoch == newest
    if agent.order.role is Role.ROLLOUT:
        assert world.route == Routed(newest, world.published.version)
        assert (world.engine_awake, world.loaded, world.joined_epoch) == (True, world.published, -1)
    else:
        assert (world.route, world.engine_awake, world.joined_epoch) == (None, False, newest)


def test_pauses_grow_to_a_limit() -> None:
    pauses = [roles.pause_before_retry(attempts) for attempts in range(1, 40)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == roles.LONGEST_PAUSE_SECONDS
