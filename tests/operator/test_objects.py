"""What the built objects promise: restricted pods, tokens for nobody but those who need them, sandboxes that reach the gateway alone."""

from __future__ import annotations

import base64
import gzip
import json
import random
from pathlib import Path
from typing import Any

from tests.operator.world import World, manifest
from tidemill.api.loading import load_rljob
from tidemill_operator import jwks, storage
from tidemill_operator.actions import Ref
from tidemill_operator.names import Manifest
from tidemill_operator.plan import context_of


def made() -> World:
    world = World()
    world.settle()
    return world


def pod_specs(world: World) -> dict[str, Manifest]:
    sets = {name: world.objects[Ref("StatefulSet", "ns", f"job-{name}")]["spec"]["template"]["spec"] for name in ("conductor", "gateway")}
    return {**sets, "cell": world.pods()["job-cell-0-0"]["spec"]}


def test_every_pod_is_restricted() -> None:
    for spec in pod_specs(made()).values():
        security = spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["initContainers"], *spec["containers"]):
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"]
            assert not own["allowPrivilegeEscalation"]
            assert own["capabilities"] == {"drop": ["ALL"]}


def test_programs_run_under_the_images_entry_point() -> None:
    for spec in pod_specs(made()).values():
        for container in (*spec["initContainers"], *spec["containers"]):
            assert container["args"][:2] == ["python", "-m"]
            assert "command" not in container


def test_only_cells_make_the_model_and_only_they_mount_the_claim_that_it_comes_from() -> None:
    world = World(manifest(model={"source": "pvc:weights/qwen"}))
    world.settle()
    specs = pod_specs(world)
    assert specs["conductor"]["initContainers"] == []
    (waits,), (makes,) = specs["gateway"]["initContainers"], specs["cell"]["initContainers"]
    assert ("--wait" in waits["args"], "--wait" in makes["args"]) == (True, False)
    assert (waits["image"], makes["image"]) == ("c", "k")
    assert {"name": "model", "mountPath": "/work/claims/weights", "readOnly": True} in makes["volumeMounts"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "weights"}} in specs["cell"]["volumes"]
    assert "weights" not in json.dumps([specs["gateway"], specs["conductor"]])
    assert "claims" not in json.dumps(pod_specs(made()))


def test_no_process_of_a_job_is_left_without_a_share_of_its_node() -> None:
    for spec in pod_specs(made()).values():
        assert spec["containers"][0]["resources"]["requests"].keys() >= {"cpu", "memory"}


def test_what_conductor_and_gateway_know_outlives_their_pods() -> None:
    world = World(manifest(gateway={"storage": "3Gi"}, conductor={"storage": "4Gi"}))
    world.settle()
    for component, size in (("gateway", "3Gi"), ("conductor", "4Gi")):
        stateful_set = world.objects[Ref("StatefulSet", "ns", f"job-{component}")]["spec"]
        (claim,) = stateful_set["volumeClaimTemplates"]
        assert claim["spec"]["resources"]["requests"]["storage"] == size
        assert "work" not in [v["name"] for v in stateful_set["template"]["spec"]["volumes"]]
        assert {"name": "work", "mountPath": "/work"} in stateful_set["template"]["spec"]["containers"][0]["volumeMounts"]
        assert stateful_set["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}


def test_only_the_conductor_has_a_token_for_the_api_server() -> None:
    for component, spec in pod_specs(made()).items():
        assert spec["automountServiceAccountToken"] is False
        sources = [s["serviceAccountToken"] for v in spec["volumes"] for s in v.get("projected", {}).get("sources", ()) if "serviceAccountToken" in s]
        audiences = {s.get("audience", "the API server") for s in sources}
        assert audiences == ({"tidemill.dev", "the API server"} if component == "conductor" else {"tidemill.dev"})


def test_the_conductor_may_do_nothing_but_handle_pods() -> None:
    rules = made().objects[Ref("Role", "ns", "job-conductor")]["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {"pods", "pods/log"}
    assert not any("*" in rule["verbs"] for rule in rules)


def test_sandboxes_reach_the_gateways_port_and_nothing_reaches_them() -> None:
    world = made()
    policy = world.objects[Ref("NetworkPolicy", "ns", "job-sandboxes")]["spec"]
    assert policy["ingress"] == []
    (egress,) = policy["egress"]
    assert egress["ports"] == [{"port": 7001, "protocol": "TCP"}]
    selector = egress["to"][0]["podSelector"]
    assert selector["matchLabels"] == {"tidemill.dev/job": "job"}
    assert selector["matchExpressions"][0]["values"] == ["gateway"]


def test_a_drain_takes_one_pod_of_a_kind_at_a_time_and_cells_are_counted_because_no_controller_can() -> None:
    world = World(manifest(count=3, cells={"nodesPerCell": 2, "standalone": {"replicas": 1}}))
    world.settle()
    bounds = {name: world.objects[Ref("PodDisruptionBudget", "ns", f"job-{name}")]["spec"] for name in ("conductor", "gateway", "cells")}
    assert [bounds[name]["maxUnavailable"] for name in ("conductor", "gateway")] == [1, 1]
    assert (bounds["cells"]["minAvailable"], "maxUnavailable" in bounds["cells"]) == (3 * 2 + 1 - 1, False)


def test_pods_of_cells_declare_the_ports_on_which_somebody_listens() -> None:
    world = World(manifest(count=2, cells={"nodesPerCell": 2, "standalone": {"replicas": 1}}))
    world.settle()
    of_cells = {name: pod for name, pod in world.pods().items() if pod["metadata"]["labels"]["tidemill.dev/component"] == "cell"}
    ports = {name: [port["name"] for port in pod["spec"]["containers"][0]["ports"]] for name, pod in of_cells.items()}
    both, agent = ["agent", "trainer"], ["agent"]
    assert ports == {"job-cell-0-0": both, "job-cell-0-1": agent, "job-cell-1-0": both, "job-cell-1-1": agent, "job-standalone-0-0": agent}


def test_the_manifest_in_the_pods_is_one_that_processes_load(tmp_path: Path) -> None:
    data = made().objects[Ref("ConfigMap", "ns", "job")]["data"]
    file = tmp_path / "job.yaml"
    file.write_text(data["job.yaml"])
    assert load_rljob(file).spec.schedule.steps == 3
    sandbox = json.loads(data["sandbox.json"])
    assert sandbox["gatewayUrl"].startswith("http://10.96.0.")
    assert (sandbox["namespace"], sandbox["job"], sandbox["image"]) == ("ns", "job", "s")


def test_a_job_of_a_queue_has_each_cell_admitted_as_a_whole() -> None:
    document = manifest(cells={"nodesPerCell": 2})
    document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    world = World(document)
    world.settle()
    meta = world.pods()["job-cell-1-1"]["metadata"]
    assert meta["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert meta["labels"]["kueue.x-k8s.io/pod-group-name"] == "job-cell-1"
    assert meta["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
    assert "kueue.x-k8s.io/queue-name" not in made().pods()["job-cell-0-0"]["metadata"]["labels"]


def test_pods_of_a_cell_are_a_gang_where_the_cluster_has_gangs_unless_a_queue_admits_them() -> None:
    for nodes, labels, grouped in ((2, {}, True), (1, {}, False), (2, {"kueue.x-k8s.io/queue-name": "research"}, False)):
        document = manifest(cells={"nodesPerCell": nodes})
        document["metadata"]["labels"] = labels
        world = World(document)
        world.gangs = True
        world.settle()
        assert {ref.name for ref in world.objects if ref.kind == "PodGroup"} == ({"job-cell-0", "job-cell-1"} if grouped else set())
        named = {pod["spec"].get("schedulingGroup", {}).get("podGroupName") for pod in world.pods().values()}
        assert named == ({"job-cell-0", "job-cell-1"} if grouped else {None})


def test_mounts_have_volumes_and_probes_have_ports() -> None:
    for component, spec in pod_specs(made()).items():
        volumes = {v["name"] for v in spec["volumes"]} | ({"work"} if component in ("conductor", "gateway") else set())
        for container in (*spec["initContainers"], *spec["containers"]):
            assert {m["name"] for m in container["volumeMounts"]} <= volumes
        main = spec["containers"][0]
        ports = {p["containerPort"] for p in main["ports"]}
        assert {main[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} <= ports


def test_trust_names_the_jobs_own_accounts_and_the_operators() -> None:
    cluster = jwks.ClusterKeys("https://issuer", {"keys": []})
    told: dict[str, Any] = json.loads(jwks.trust(cluster, World().config, "ns", "job"))
    prefix = "system:serviceaccount:"
    assert told["subjects"] == [f"{prefix}ns:job-{c}" for c in ("conductor", "gateway", "cell")] + [f"{prefix}tidemill-system:tidemill-operator"]
    assert (told["issuer"], told["audience"], told["keys"]) == ("https://issuer", "tidemill.dev", {"keys": []})
    assert jwks.trust(None, World().config, "ns", "job") == ""


def test_kept_events_fit_a_config_map_and_lose_their_oldest_first() -> None:
    world = World(manifest())
    context = context_of(world.observed(), world.config)
    assert context is not None
    noise = random.Random(1)
    lines = b"".join(json.dumps({"n": n, "noise": noise.randbytes(500).hex()}).encode() + b"\n" for n in range(4000))
    packed = base64.b64decode(storage.history(context, lines)["binaryData"]["metrics.jsonl.gz"])
    kept = gzip.decompress(packed).splitlines()
    assert len(packed) <= storage.HISTORY_BYTES
    assert json.loads(kept[-1])["n"] == 3999
    assert all(json.loads(line)["noise"] for line in kept[:5])
