from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from tests.operator.world import World, cell_tide, manifest, state, tide
from tidemill.api.gpucell import GPUCellStatus
from tidemill.api.loading import gpucell_of, rljob_of
from tidemill.wire.cell import CellPhase, Flip, Role
from tidemill.wire.conductor import JobPhase
from tidemill_operator.actions import PatchStatus, Ref
from tidemill_operator.cell_status import due
from tidemill_operator.observed import Reading
from tidemill_operator.status import whole


def flip(epoch: int, to: Role = Role.TRAINING, at: float = 1_800_000_000.0) -> Flip:
    return Flip("cell-0", to, epoch, at, 2.5, {"drain": 0.5, "sleep": 2.0}, 3)


def test_the_numbers_a_person_looks_for() -> None:
    world = World()
    world.everything_runs()
    training = cell_tide("cell-0", Role.TRAINING, 2, state=state("cell-0", Role.TRAINING, 2, flip(2)))
    world.now += 60
    world.hear(tide(world, (training, cell_tide("cell-1")), step=1, terminated=5, mean_score=0.25))
    world.settle()
    status = world.job["status"]
    assert (status["phase"], status["progress"], status["water"]) == ("Running", "1/3", "3/8")
    assert (status["cellsInRollout"], status["cellsInTraining"]) == (1, 1)
    assert status["scores"] == {"last": 0.25, "best": 0.25}
    assert status["flips"][0]["cell"] == "cell-0"
    assert status["lastFlipSeconds"] == 2.5
    assert status["eta"].endswith("m")
    assert "CellFlipped" in world.reasons()


def test_the_status_is_one_that_the_models_take() -> None:
    world = World()
    world.everything_runs()
    assert rljob_of(world.job).status.phase == "Running"
    assert gpucell_of(world.objects[Ref("GPUCell", "ns", "job-cell-0")]).status.phase == "Ready"


def test_defaults_that_the_server_adds_to_a_status_cause_no_write() -> None:
    world = World(manifest(count=1))
    world.settle()
    world.put({**world.job, "status": {**world.job["status"], "scores": {}, "waterlevel": 0, "policyVersion": -1, "flips": []}})
    world.now += 100
    assert world.plan() == ()


def test_a_time_of_transition_is_kept_until_the_status_of_the_condition_changes() -> None:
    world = World()
    world.everything_runs()
    before = world.condition("Ready")
    assert before["status"] == "True"
    world.now += 100
    world.hear(tide(world, step=2))
    world.settle()
    assert world.condition("Ready")["lastTransitionTime"] == before["lastTransitionTime"]
    world.pod(
        "job-cell-1-0", status={"phase": "Running", "containerStatuses": [{"name": "cell", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    )
    world.settle()
    assert world.condition("Ready")["status"] == "False"
    assert world.condition("Ready")["lastTransitionTime"] > before["lastTransitionTime"]


def test_the_waterlevel_alone_is_written_once_in_ten_seconds_and_a_flip_at_once() -> None:
    world = World()
    world.everything_runs()
    written = world.status_written
    world.hear(tide(world, terminated=1))
    world.now = written + 5
    assert not [a for a in world.plan() if isinstance(a, PatchStatus)]
    world.hear(tide(world, (cell_tide("cell-0", state=state("cell-0", flip=flip(1))), cell_tide("cell-1"))))
    assert [a.ref.kind for a in world.plan() if isinstance(a, PatchStatus)].count("RLJob") == 1
    world.hear(tide(world, terminated=1))
    world.now = written + 11
    assert [a for a in world.plan() if isinstance(a, PatchStatus)]


def test_only_the_last_twenty_flips_are_kept() -> None:
    world = World()
    world.everything_runs()
    for epoch in range(2, 30):
        told = (
            cell_tide("cell-0", epoch=epoch, state=state("cell-0", epoch=epoch, flip=flip(epoch, at=1_800_000_000.0 + epoch))),
            cell_tide("cell-1"),
        )
        world.hear(tide(world, told))
        world.settle()
    assert [f["epoch"] for f in world.job["status"]["flips"]] == list(range(10, 30))


def test_two_flips_of_a_cell_between_two_passes_are_both_kept_and_none_comes_back_after_it_was_dropped() -> None:
    world = World()
    world.everything_runs()
    flips = tuple(flip(epoch, at=1_800_000_000.0 + epoch) for epoch in range(2, 30))
    told = tide(world, (cell_tide("cell-0", epoch=29, state=state("cell-0", epoch=29, flip=flips[-1])), cell_tide("cell-1")))
    for _ in range(2):
        world.hear(told, flips=flips)
        world.settle()
        assert [f["epoch"] for f in world.job["status"]["flips"]] == list(range(10, 30))
    assert world.reasons().count("CellFlipped") == 20


def test_a_silent_conductor_is_said_and_the_last_numbers_stand() -> None:
    world = World()
    world.everything_runs()
    world.hear(tide(world, step=2))
    world.settle()
    world.now += 100
    world.settle()
    assert world.condition("ConductorReachable")["reason"] == "Silent"
    assert (world.job["status"]["phase"], world.job["status"]["step"]) == ("Paused", 2)


def test_a_resumed_job_begins_its_time_anew() -> None:
    world = World()
    world.everything_runs()
    first = world.job["status"]["startTime"]
    world.edit(suspend=True)
    world.hear(tide(world), suspended=True)
    world.settle()
    for name in list(world.pods()):
        world.remove(Ref("Pod", "ns", name))
    world.settle()
    assert world.job["status"]["phase"] == "Suspended"
    world.now += 1000
    world.edit(suspend=False)
    world.settle()
    world.everything_runs()
    assert world.job["status"]["startTime"] > first


def test_a_cell_whose_children_keep_dying_says_so() -> None:
    world = World()
    world.everything_runs()
    world.hear(tide(world, (cell_tide("cell-0", state=state("cell-0", phase=CellPhase.FAILED)), cell_tide("cell-1"))))
    world.settle()
    conditions = world.objects[Ref("GPUCell", "ns", "job-cell-0")]["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions} == {"Ready": "False", "Failed": "True"}


def test_what_the_job_waits_for_is_named() -> None:
    world = World()
    world.everything_runs()
    expected = {"Rollout": tide(world), "Training": tide(world, ready_groups=1), "Flips": tide(world, (cell_tide("cell-0", settled=False),))}
    for word, told in expected.items():
        world.hear(told)
        world.now += 11
        world.settle()
        assert world.job["status"]["limitedBy"] == word
    world.hear(tide(world, phase=JobPhase.SUCCEEDED))
    world.settle()
    assert world.job["status"]["limitedBy"] == ""


def test_an_operator_that_has_just_come_and_not_heard_the_conductor_yet_changes_nothing() -> None:
    world = World()
    world.everything_runs()
    told = world.reading
    world.now += 5
    world.reading = Reading(since=world.now)
    assert world.plan() == ()
    world.now += 10
    assert world.plan() == ()
    world.reading = replace(told, heard=world.now)
    assert world.plan() == ()


def test_a_conductor_that_stays_silent_is_said_to_be_silent_by_a_young_operator_too() -> None:
    world = World()
    world.everything_runs()
    world.reading = Reading(since=world.now)
    world.now += 50
    world.settle()
    assert world.job["status"]["phase"] == "Paused"
    assert world.condition("ConductorReachable")["reason"] == "Silent"
    cell = world.objects[Ref("GPUCell", "ns", "job-cell-0")]["status"]
    assert (cell["phase"], cell["role"]) == ("Starting", "Rollout")


def test_where_pods_are_is_told_before_the_conductor_is_heard() -> None:
    world = World()
    world.everything_runs()
    world.reading = Reading(since=world.now)
    world.pod("job-cell-1-0", node="n7")
    world.settle()
    assert world.objects[Ref("GPUCell", "ns", "job-cell-1")]["status"]["node"] == "n7"


def test_how_many_calls_a_cell_serves_is_told_with_other_news_and_else_once_a_minute() -> None:
    before = {"phase": "Ready", "unfinishedExecutions": 3}
    calls, news = ({**whole(GPUCellStatus, before), "unfinishedExecutions": 5, "phase": phase} for phase in ("Ready", "Flipping"))
    assert not due(before, whole(GPUCellStatus, before), 0.0, 1000.0)
    assert [due(before, calls, 1000.0, now) for now in (1001.0, 1059.0, 1060.0)] == [False, False, True]
    assert due(before, news, 1000.0, 1001.0)
    assert not due(calls, {**calls, "unfinishedExecutions": 0}, 1000.0, 1010.0)


def test_a_cell_tells_its_calls() -> None:
    world = World()
    world.everything_runs()
    busy = cell_tide("cell-0", state=structs.replace(state("cell-0"), live_calls=4))
    world.now += 61
    world.hear(tide(world, (busy, cell_tide("cell-1"))))
    world.settle()
    assert world.objects[Ref("GPUCell", "ns", "job-cell-0")]["status"]["unfinishedExecutions"] == 4
