from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.operator.world import manifest
from tidemill_operator.actions import Ref
from tidemill_operator.caches import Caches

KEY = ("ns", "job")


def pod(version: int, uid: str = "u", job: str = "job", name: str = "p") -> dict[str, Any]:
    labels = {"tidemill.dev/job": job, "tidemill.dev/component": "cell"}
    meta = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"kind": "Pod", "metadata": meta, "spec": {}, "status": {"phase": f"v{version}"}}


def node(version: int, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2027-01-01T00:00:00Z"}]
    return {"kind": "Node", "metadata": {"name": "n", "uid": "n", "resourceVersion": str(version)}, "status": {"conditions": conditions}}


def test_what_is_older_than_what_is_known_changes_nothing() -> None:
    caches = Caches()
    assert caches.absorb(pod(5)) == {KEY}
    assert caches.absorb(pod(4)) == set()
    assert caches.pods(KEY)[0].phase == "v5"


def test_the_deletion_of_a_former_object_leaves_its_successor() -> None:
    caches = Caches()
    caches.absorb(pod(5, "new"))
    assert caches.remove(Ref("Pod", "ns", "p"), "old") == set()
    assert caches.pods(KEY)
    assert caches.remove(Ref("Pod", "ns", "p"), "new") == {KEY}
    assert caches.pods(KEY) == ()


def test_a_nodes_heartbeats_concern_nobody_and_its_loss_concerns_all_jobs() -> None:
    caches = Caches()
    document = manifest()
    document["metadata"] |= {"uid": "j", "resourceVersion": "1"}
    caches.absorb(document)
    assert caches.absorb(node(2)) == {KEY}
    assert caches.absorb(node(3)) == set()
    assert caches.absorb(node(4, ready=False)) == {KEY}
    assert caches.remove(Ref("Node", "", "n"), "n") == {KEY}


def test_a_cell_written_by_hand_that_is_none_is_not_followed() -> None:
    caches = Caches()
    meta = {"name": "job-cell-0", "namespace": "ns", "uid": "c", "resourceVersion": "1", "labels": {"tidemill.dev/job": "job"}}
    caches.absorb({"apiVersion": "tidemill.dev/v1alpha1", "kind": "GPUCell", "metadata": meta, "spec": {"nonsense": 1}})
    assert caches.cells(KEY) == ()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.sampled_from("ab"), st.sampled_from(["job", "other"])), max_size=30))
def test_the_index_by_job_and_the_entries_agree_always(steps: list[tuple[bool, int, str, str]]) -> None:
    caches = Caches()
    for add, version, name, job in steps:
        if add:
            caches.absorb(pod(version, f"u{version}", job, name))
        else:
            caches.remove(Ref("Pod", "ns", name), f"u{version}")
        indexed = {(key, ref) for key, refs in caches.of_job.items() for ref in refs}
        assert indexed == {(entry.job, ref) for ref, entry in caches.entries.items()}
