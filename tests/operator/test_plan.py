from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.operator.world import World, config, manifest, tide
from tidemill.wire.conductor import JobPhase
from tidemill_operator import storage
from tidemill_operator.actions import Apply, Delete, DryRun, Event, PatchStatus, Ref
from tidemill_operator.observed import Reading
from tidemill_operator.plan import context_of


def test_the_first_thing_is_to_ask_whether_the_server_would_take_the_pods() -> None:
    world = World()
    dry_run = next(a for a in world.plan() if isinstance(a, DryRun))
    assert {m["kind"] for m in dry_run.manifests} == {"Pod"}
    assert not [a for a in world.plan() if isinstance(a, Apply)]


def test_a_job_gets_everything_it_needs_and_planning_again_yields_nothing() -> None:
    world = World()
    world.settle()
    kinds = Counter(ref.kind for ref in world.objects)
    assert kinds == {
        "RLJob": 1, "GPUCell": 2, "Pod": 2, "StatefulSet": 2, "Service": 2, "ConfigMap": 1, "ServiceAccount": 3, "PersistentVolumeClaim": 1,
        "Role": 1, "RoleBinding": 1, "NetworkPolicy": 3, "PodDisruptionBudget": 3,
    }  # fmt: skip
    assert world.plan() == ()


def test_everything_belongs_to_the_job_and_blocks_no_deletion() -> None:
    world = World()
    world.settle()
    uid = world.job["metadata"]["uid"]
    for ref, raw in world.objects.items():
        if ref.kind == "RLJob":
            continue
        (owner,) = raw["metadata"]["ownerReferences"]
        expected = world.objects[Ref("GPUCell", "ns", ref.name.rsplit("-", 1)[0])]["metadata"]["uid"] if ref.kind == "Pod" else uid
        assert owner["uid"] == expected
        assert owner["blockOwnerDeletion"] is False
        assert "finalizers" not in raw["metadata"]


def test_processes_are_given_addresses_not_names() -> None:
    world = World()
    world.settle()
    ip = world.objects[Ref("Service", "ns", "job-conductor")]["spec"]["clusterIP"]
    command = world.pods()["job-cell-1-0"]["spec"]["containers"][0]["args"]
    assert command[command.index("--conductor-url") + 1] == f"http://{ip}:7000"
    assert command[command.index("--cell") + 1] == "cell-1"


def test_of_several_gateways_every_process_is_told_all_and_each_its_number() -> None:
    world = World(manifest(gateway={"replicas": 3}))
    world.settle()
    addresses = [world.objects[Ref("Service", "ns", f"job-gateway-{n}")]["spec"]["clusterIP"] for n in range(3)]
    everywhere = ",".join(f"http://{address}:7001" for address in addresses)
    sets = {name: world.objects[Ref("StatefulSet", "ns", f"job-{name}")]["spec"] for name in ("conductor", "gateway")}
    (gateway,), (conductor,) = (sets[name]["template"]["spec"]["containers"] for name in ("gateway", "conductor"))
    (cell,) = world.pods()["job-cell-1-0"]["spec"]["containers"]
    for container in (gateway, conductor, cell):
        assert container["args"][container["args"].index("--gateway-url") + 1] == everywhere
    assert json.loads(world.objects[Ref("ConfigMap", "ns", "job")]["data"]["sandbox.json"])["gatewayUrl"] == everywhere
    assert sets["gateway"]["replicas"] == 3
    assert gateway["args"][gateway["args"].index("--number") + 1] == "$(GATEWAY_NUMBER)"
    (number,) = (variable for variable in gateway["env"] if variable["name"] == "GATEWAY_NUMBER")
    assert number["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"


def test_an_invalid_job_gets_a_condition_and_an_event_and_nothing_else() -> None:
    world = World(manifest(count=1))
    actions = world.plan()
    assert [type(a) for a in actions] == [PatchStatus, Event, Event]
    world.settle()
    assert world.job["status"]["phase"] == "Invalid"
    assert "spec.cells.count" in world.condition("Invalid")["message"]
    assert {ref.kind for ref in world.objects} == {"RLJob"}


@pytest.mark.parametrize(
    ("spec", "reason", "field"),
    [
        ({"schedule": {"extensions": ["Oversubscribe"]}}, "NotSupported", "spec.schedule.extensions: has Oversubscribe"),
        ({"initFrom": {"checkpoint": "step-3"}}, "NotSupported", "spec.initFrom.checkpoint"),
        ({"cells": {"network": {"profile": "efa"}, "gpusPerNode": 8}}, "UnknownNetworkProfile", "spec.cells.network.profile"),
        ({"cells": {"template": {"spec": {"containers": [{"name": "cell", "command": ["sh"]}]}}}}, "TemplateRefused", "containers[cell].command"),
        ({"conductor": {"template": {"spec": {"serviceAccountName": "mine"}}}}, "TemplateRefused", "spec.conductor.template.spec.serviceAccountName"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_field_and_the_remedy(spec: dict[str, Any], reason: str, field: str) -> None:
    world = World(manifest(**spec))
    world.settle()
    condition = world.condition("Invalid")
    assert (condition["status"], condition["reason"]) == ("True", reason)
    assert field in condition["message"]
    assert {ref.kind for ref in world.objects} == {"RLJob"}


def test_a_job_that_runs_is_not_told_what_no_conductor_can_run() -> None:
    world = World()
    world.everything_runs()
    ref = Ref("ConfigMap", "ns", "job")
    before = world.objects[ref]["data"]["job.yaml"]
    world.edit(schedule={**world.job["spec"]["schedule"], "extensions": ["Oversubscribe"]})
    world.settle()
    assert world.condition("Invalid")["status"] == "True"
    assert world.objects[ref]["data"]["job.yaml"] == before
    world.edit(schedule={**world.job["spec"]["schedule"], "extensions": ["Stay"]})
    world.settle()
    assert "Stay" in world.objects[ref]["data"]["job.yaml"]


def test_pods_that_the_server_would_refuse_are_not_made_and_it_is_said_why() -> None:
    world = World()
    world.refusal = "violates PodSecurity restricted"
    world.settle()
    assert {ref.kind for ref in world.objects} == {"RLJob"}
    assert "violates PodSecurity" in world.condition("Created")["message"]
    world.refusal, world.dry_run = "", None
    world.settle()
    assert world.pods()


def test_a_job_that_no_node_can_hold_is_not_begun() -> None:
    world = World(manifest(cells={"count": 2, "capacity": 8, "resources": {"cpu": 1, "memory": "100Gi"}}))
    world.node("n0")
    world.settle()
    assert world.condition("HostMemoryFits")["reason"] == "NoNodeIsLargeEnough"
    assert {ref.kind for ref in world.objects} == {"RLJob", "Node"}
    world.node("n1", memory="200Gi")
    world.settle()
    assert world.pods()


def test_a_missing_pod_is_made_again_under_its_name_and_never_twice() -> None:
    world = World()
    world.everything_runs()
    world.remove(Ref("Pod", "ns", "job-cell-1-0"))
    made = [a for a in world.plan() if isinstance(a, Apply)]
    assert [a.ref.name for a in made] == ["job-cell-1-0"]


def test_a_pod_that_is_ending_is_not_made_again_before_it_is_gone() -> None:
    world = World()
    world.everything_runs()
    raw = world.pods()["job-cell-1-0"]
    world.put({**raw, "metadata": {**raw["metadata"], "deletionTimestamp": "2027-01-01T00:00:00Z"}})
    assert not [a for a in world.plan() if isinstance(a, Apply)]


def test_pods_of_a_node_that_is_away_are_replaced_after_the_set_time_by_force() -> None:
    world = World()
    world.everything_runs()
    world.node("n0", ready=False)
    world.now += 59
    assert not [a for a in world.plan() if isinstance(a, Delete)]
    world.now += 2
    deletes = [a for a in world.plan() if isinstance(a, Delete)]
    assert {d.ref.name for d in deletes} == {"job-cell-0-0", "job-cell-1-0", "job-conductor-0", "job-gateway-0"}
    assert all(d.force for d in deletes)


def test_a_pod_on_a_node_that_is_not_known_yet_is_not_taken_for_lost() -> None:
    world = World()
    world.everything_runs()
    world.node("other")
    assert not [a for a in world.plan() if isinstance(a, Delete)]
    world.now += 61
    assert {a.ref.name for a in world.plan() if isinstance(a, Delete)} == set(world.pods())


def test_a_suspended_job_waits_for_its_conductor_and_then_has_no_pods() -> None:
    world = World()
    world.everything_runs()
    world.edit(suspend=True)
    world.settle()
    assert world.job["status"]["phase"] == "Suspending"
    assert len(world.pods()) == 4
    world.hear(tide(world), suspended=True)
    world.settle()
    for name in [n for n in world.pods() if "cell" not in n]:
        world.remove(Ref("Pod", "ns", name))  # the StatefulSets have no replicas now
    world.settle()
    assert world.job["status"]["phase"] == "Suspended"
    assert not world.pods()
    assert world.objects[Ref("StatefulSet", "ns", "job-conductor")]["spec"]["replicas"] == 0
    assert {ref.kind for ref in world.objects} >= {"GPUCell", "PersistentVolumeClaim"}


def test_a_conductor_that_never_answers_does_not_keep_a_job_from_being_suspended() -> None:
    world = World()
    world.everything_runs()
    world.edit(suspend=True)
    world.settle()
    world.now += 121
    world.settle()
    assert not [name for name in world.pods() if "cell" in name]


def test_a_suspended_job_that_is_resumed_gets_its_pods_back() -> None:
    world = World(manifest(suspend=True))
    world.settle()
    assert not world.pods()
    assert world.job["status"]["phase"] == "Suspended"
    world.edit(suspend=False)
    world.settle()
    assert len(world.pods()) == 2
    assert world.objects[Ref("StatefulSet", "ns", "job-conductor")]["spec"]["replicas"] == 1


def test_a_job_that_succeeds_gives_its_cells_back_and_keeps_the_conductor_until_its_events_are_kept() -> None:
    world = World()
    world.everything_runs()
    world.hear(tide(world, phase=JobPhase.SUCCEEDED, step=3))
    world.settle()
    assert world.job["status"]["phase"] == "Succeeded"
    assert set(world.pods()) == {"job-conductor-0", "job-gateway-0"}
    sets = {name: world.objects[Ref("StatefulSet", "ns", f"job-{name}")]["spec"]["replicas"] for name in ("conductor", "gateway")}
    assert sets == {"conductor": 1, "gateway": 0}
    context = context_of(world.observed(), world.config)
    assert context
    world.put(storage.history(context, b""))
    world.settle()
    assert world.objects[Ref("StatefulSet", "ns", "job-conductor")]["spec"]["replicas"] == 0


def test_a_terminal_phase_stays_whatever_the_conductor_or_the_user_says_later() -> None:
    world = World()
    world.everything_runs()
    world.hear(tide(world, phase=JobPhase.FAILED, ended="no step in sight"))
    world.settle()
    completed = world.job["status"]["completionTime"]
    world.hear(tide(world, phase=JobPhase.RUNNING))
    world.edit(suspend=True)
    world.settle()
    assert world.job["status"]["phase"] == "Failed"
    assert world.job["status"]["completionTime"] == completed
    assert "no step in sight" in world.condition("Failed")["message"]


def test_a_job_that_has_ended_is_deleted_after_its_time() -> None:
    world = World(manifest(ttlSecondsAfterFinished=600))
    world.everything_runs()
    world.hear(tide(world, phase=JobPhase.SUCCEEDED))
    world.settle()
    world.now += 590
    assert not [a for a in world.plan() if isinstance(a, Delete) and a.ref.kind == "RLJob"]
    world.now += 20
    assert world.plan() == (Delete(Ref("RLJob", "ns", "job"), world.job["metadata"]["uid"], "ttlSecondsAfterFinished is over"),)


def test_a_job_over_its_deadline_fails() -> None:
    world = World(manifest(activeDeadlineSeconds=100))
    world.everything_runs()
    world.now += 101
    world.settle()
    assert world.job["status"]["phase"] == "Failed"
    assert "activeDeadlineSeconds" in world.condition("Finished")["message"]


def test_more_standalone_cells_are_added_and_fewer_leave_once_the_conductor_has_forgotten_them() -> None:
    standalone = {"replicas": 1}
    world = World(manifest(cells={"count": 2, "capacity": 8, "standalone": standalone}))
    world.everything_runs()
    assert "job-standalone-0-0" in world.pods()
    world.edit(cells={"count": 2, "capacity": 8, "standalone": {"replicas": 0}})
    world.settle()
    assert "job-standalone-0-0" in world.pods()
    world.hear(tide(world, cells=tuple(c for c in tide(world).cells if not c.standalone)))
    world.settle()
    assert "job-standalone-0-0" not in world.pods()
    assert Ref("GPUCell", "ns", "job-standalone-0") not in world.objects


def test_cells_of_several_nodes_wait_for_the_leaders_address() -> None:
    world = World(manifest(cells={"count": 2, "capacity": 8, "nodesPerCell": 2}))
    world.settle()
    assert set(world.pods()) == {f"job-cell-{cell}-{rank}" for cell in (0, 1) for rank in (0, 1)}
    command = world.pods()["job-cell-1-1"]["spec"]["containers"][0]["args"]
    ip = world.objects[Ref("Service", "ns", "job-cell-1")]["spec"]["clusterIP"]
    assert command[-2:] == ["--leader", f"http://{ip}:7002"]


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    world = World()
    world.everything_runs()
    world.put({**world.job, "metadata": {**world.job["metadata"], "deletionTimestamp": "2027-01-01T00:00:00Z"}})
    world.remove(Ref("Pod", "ns", "job-cell-1-0"))
    assert world.plan() == ()


def test_a_network_profile_reaches_the_cells_pods_alone() -> None:
    profile = {
        "resources": {"rdma/hca": "1"},
        "annotations": {"k8s.v1.cni.cncf.io/networks": "net"},
        "capabilities": ["IPC_LOCK"],
        "env": {"NCCL_IB_HCA": "mlx5"},
    }
    profile["claims"] = [{"name": "nic", "resourceClaimTemplateName": "nic"}]
    world = World(manifest(cells={"network": {"profile": "dra"}, "gpusPerNode": 8}), config(networkProfiles={"dra": profile}))
    world.settle()
    pod = world.pods()["job-cell-0-0"]
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi", "rdma/hca": "1", "nvidia.com/gpu": "8"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "net"
    assert pod["spec"]["resourceClaims"] == [{"name": "nic", "resourceClaimTemplateName": "nic"}]
    conductor = world.objects[Ref("StatefulSet", "ns", "job-conductor")]["spec"]["template"]
    assert "rdma/hca" not in json.dumps(conductor)
    assert "claims" not in conductor["spec"]["containers"][0]["resources"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "fail", "lose", "unschedule", "suspend", "resume", "hear", "end", "wait", "vanish"]), st.integers(0, 3)),
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_whatever_happens_a_plan_comes_to_rest_and_no_rank_has_two_pods(steps: list[tuple[str, int]]) -> None:
    world = World()
    world.node("n0")
    ended = False
    for what, which in steps:
        names = sorted(world.pods())
        name = names[which % len(names)] if names else ""
        match what:
            case "run" if name:
                world.pod(name)
            case "fail" if name:
                world.pod(name, status={"phase": "Failed"})
            case "vanish" if name:
                world.remove(Ref("Pod", "ns", name))
            case "unschedule" if name:
                world.unschedulable(name)
            case "lose":
                world.node("n0", ready=which % 2 == 0)
            case "suspend" | "resume":
                world.edit(suspend=what == "suspend")
            case "hear":
                world.hear(tide(world), suspended=which == 3)
            case "end":
                world.hear(tide(world, phase=JobPhase.SUCCEEDED))
            case "wait":
                world.now += 100.0 * which
        world.settle(30)
        phase = world.job["status"]["phase"]
        assert not ended or phase == "Succeeded"
        ended = phase == "Succeeded"
        owned = Counter(raw["metadata"]["labels"].get("tidemill.dev/cell") for raw in world.pods().values())
        assert all(count == 1 for cell, count in owned.items() if cell)
        if phase in ("Suspended", "Succeeded"):
            assert not owned


def test_a_service_that_was_deleted_comes_back_at_the_address_that_the_pods_know() -> None:
    world = World(manifest(cells={"count": 2, "capacity": 8, "nodesPerCell": 2}))
    world.everything_runs()
    pods = dict(world.pods())
    before = {ref: raw["spec"]["clusterIP"] for ref, raw in world.objects.items() if ref.kind == "Service"}
    assert len(before) == 4, "conductor, gateway, and the first node of each cell"
    for ref in before:
        world.remove(ref)
    world.settle()
    assert {ref: raw["spec"]["clusterIP"] for ref, raw in world.objects.items() if ref.kind == "Service"} == before
    assert world.pods() == pods


def test_what_somebody_wrote_over_the_remembered_addresses_counts_as_nothing() -> None:
    world = World()
    world.everything_runs()
    config_map = world.objects[Ref("ConfigMap", "ns", "job")]
    for spoilt in ("{", "[1]", '"x"'):
        world.put({**config_map, "metadata": {**config_map["metadata"], "annotations": {"tidemill.dev/addresses": spoilt}}})
        assert world.observed().things[Ref("ConfigMap", "ns", "job")].addresses == {}
        world.settle()


def test_what_is_left_of_an_earlier_job_of_the_name_neither_counts_nor_is_adopted() -> None:
    world = World()
    world.everything_runs()
    left = {ref: raw for ref, raw in world.objects.items() if ref.kind in ("GPUCell", "ConfigMap", "Service", "StatefulSet")}
    fresh = {**world.job, "metadata": {**world.job["metadata"], "uid": "another"}, "status": {}}
    world.caches.absorb({**fresh, "metadata": {**fresh["metadata"], "resourceVersion": "100000"}})
    world.reading, world.dry_run = Reading(), ""
    observed = world.observed()
    assert (observed.things, observed.cells, observed.pods) == ({}, (), ())
    assert {pod.name for pod in observed.left} == {*world.pods()}
    made = [action for action in world.plan() if isinstance(action, Apply)]
    assert {action.ref for action in made} & set(left), "they are wanted"
    assert "Pod" not in {action.ref.kind for action in made}, "their names are taken"
    assert all(not action.uid for action in made), "as new ones, which are refused while the name is taken"
    assert not any("clusterIP" in action.manifest.get("spec", {}) for action in made), "at addresses of their own"
