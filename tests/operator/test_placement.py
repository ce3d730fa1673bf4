from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.operator.world import World, manifest
from tidemill_operator.actions import Delete, GiveBack
from tidemill_operator.placement import jitter


def test_a_half_placed_job_gives_its_places_back_after_the_set_time_and_not_before() -> None:
    world = World()
    world.settle()
    world.pod("job-cell-0-0")
    world.unschedulable("job-cell-1-0")
    world.settle()
    world.now += 290
    assert not [a for a in world.plan() if isinstance(a, Delete)]
    world.now += 320
    assert {a.ref.name for a in world.plan() if isinstance(a, Delete)} == {"job-cell-0-0", "job-cell-1-0"}
    world.settle()
    assert not world.pods()
    assert "PlacesGivenBack" in world.reasons()
    assert world.condition("Placed")["status"] == "False"
    world.now = world.back_offs[""].until
    world.settle()
    assert len(world.pods()) == 2


def test_a_job_of_which_no_pod_has_a_place_holds_nothing_and_waits() -> None:
    world = World()
    world.settle()
    for name in world.pods():
        world.unschedulable(name)
    world.now += 10_000
    assert not [a for a in world.plan() if isinstance(a, GiveBack | Delete)]


def test_once_all_cells_had_places_only_the_half_placed_cell_gives_back() -> None:
    world = World(manifest(cells={"count": 2, "capacity": 8, "nodesPerCell": 2}))
    world.everything_runs()
    world.unschedulable("job-cell-1-1")
    raw = world.pods()["job-cell-1-1"]
    world.put({**raw, "spec": {k: v for k, v in raw["spec"].items() if k != "nodeName"}})
    world.now += 700
    assert {a.ref.name for a in world.plan() if isinstance(a, Delete)} == {"job-cell-1-0", "job-cell-1-1"}


def test_pods_that_a_queue_holds_back_are_nobodys_business() -> None:
    world = World()
    world.settle()
    world.pod("job-cell-0-0")
    gated = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}
    world.pod("job-cell-1-0", node="", status=gated)
    world.now += 10_000
    assert not [a for a in world.plan() if isinstance(a, GiveBack)]


def schedule(jobs: list[World], places: int) -> None:
    """A scheduler that places pods in the order it likes least: one of each job in turn."""
    held = {(w.key, name) for w in jobs for name, pod in w.pods().items() if pod["spec"].get("nodeName")}
    waiting = [[(w, name) for name, pod in sorted(w.pods().items()) if not pod["spec"].get("nodeName")] for w in jobs]
    turns = [entry for turn in zip(*[[*w, *[None] * 9] for w in waiting], strict=False) for entry in turn if entry]
    for world, name in turns:
        if len(held) < places:
            world.pod(name)
            held.add((world.key, name))
        else:
            world.unschedulable(name)


@settings(max_examples=8, deadline=None)
@given(nodes=st.integers(1, 2), extra=st.integers(0, 1), uids=st.tuples(st.uuids(), st.uuids()))
def test_of_two_jobs_that_fit_only_one_at_a_time_one_is_soon_whole(nodes: int, extra: int, uids: Any) -> None:
    """However the scheduler deals out the places, and though neither operator pass knows of the other job."""
    needs = 2 * nodes
    jobs = [World(manifest(name=f"job{n}", cells={"count": 2, "capacity": 8, "nodesPerCell": nodes})) for n in range(2)]
    for world, uid in zip(jobs, uids, strict=True):
        world.remove(next(iter(world.objects)))
        document = manifest(name=world.key[1], cells={"count": 2, "capacity": 8, "nodesPerCell": nodes})
        world.put({**document, "metadata": {**document["metadata"], "labels": {"id": str(uid)}}})
        world.job["metadata"]["uid"] = str(uid)
        world.caches.entries.clear()
        world.caches.of_job.clear()
        world.caches.absorb(world.job)
    for _ in range(2000):
        for world in jobs:
            world.settle()
            world.now += 20.0
        schedule(jobs, places=needs + extra)
        if any(len(w.pods()) == needs and all(p["spec"].get("nodeName") for p in w.pods().values()) for w in jobs):
            return
    raise AssertionError("both jobs still wait for each other")


@given(st.text(), st.integers())
def test_jitter_is_a_share_and_always_the_same(uid: str, times: int) -> None:
    assert 0 <= jitter(uid, times) < 1
    assert jitter(uid, times) == jitter(uid, times)


def test_a_sandbox_that_has_ended_is_its_conductors_business() -> None:
    world = World()
    world.everything_runs()
    conductor = world.pods()["job-conductor-0"]["metadata"]
    by = {"apiVersion": "v1", "kind": "Pod", "name": conductor["name"], "uid": conductor["uid"]}
    labels = {**conductor["labels"], "tidemill.dev/component": "sandbox"}
    meta = {"name": "job-g1-0-1", "namespace": "ns", "labels": labels, "ownerReferences": [by]}
    world.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": "n0"}, "status": {"phase": "Succeeded"}})
    world.now += 600.0
    assert "job-g1-0-1" in {pod.name for pod in world.observed().pods}
    assert not [action for action in world.plan() if isinstance(action, Delete)]
