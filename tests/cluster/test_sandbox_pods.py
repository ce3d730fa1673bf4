"""Sandboxes as pods of a real API server, with exactly the rights of a conductor, in a namespace that admits restricted pods only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from tests.cluster.api_server import ApiServer
from tests.cluster.calls import audited
from tests.cluster.kubelet import Kubelet
from tests.cluster.proxy import FaultProxy
from tests.rollout.gateway.world import until
from tests.rollout.jobs import job, task
from tests.rollout.sandbox.podworld import PodWorld, world_around
from tidemill_rollout.conductor import podlives
from tidemill_rollout.conductor.sandboxes import SandboxBroken
from tidemill_rollout.sandbox.execution import HarnessEnd
from tidemill_rollout.sandbox.manifest import Errand, Owner, PodSettings, harness_pod, selector
from tidemill_rollout.sandbox.pods import KUBECONFIG_VARIABLE, ApiError, NoCluster, Pods, connect
from tidemill_rollout.tasks.source import Task

ACCOUNT = "small-conductor"
SOLVE = "cp question.txt answer.txt"

RIGHTS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]


def allow(server: ApiServer, namespace: str) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": ACCOUNT, "namespace": namespace}, "rules": RIGHTS}
    server.kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={namespace}")
    server.kubectl("apply", "--filename=-", input=yaml.safe_dump(role))
    server.kubectl("create", "rolebinding", ACCOUNT, f"--role={ACCOUNT}", f"--serviceaccount={namespace}:{ACCOUNT}", f"--namespace={namespace}")
    server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")


def conductor_pod(server: ApiServer, namespace: str) -> str:
    """The pod that owns sandboxes, as an object only; its uid."""
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {
        "containers": [{"name": "conductor", "image": "product", "securityContext": context}],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "small-conductor-0", "namespace": namespace}, "spec": spec}
    server.kubectl("apply", "--filename=-", input=yaml.safe_dump(pod))
    return str(server.get("pod", "small-conductor-0", f"--namespace={namespace}")["metadata"]["uid"])


class Cluster:
    def __init__(self, world: PodWorld[Pods], kubelet: Kubelet, work: Task) -> None:
        self.world = world
        self.kubelet = kubelet
        self.work = work

    async def run(self, attempt: int = 1, seconds: float = 60.0) -> HarnessEnd:
        key = await self.world.open("e-1", attempt)
        return await self.world.sandboxes.run("e-1", attempt, self.work.name, key, seconds)

    async def score(self) -> float:
        return (await self.world.sandboxes.evaluate("e-1", 1, self.work.name)).score

    async def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.kubelet.pods()]

    async def running(self, name: str = "small-e-1-1") -> None:
        async with asyncio.timeout(20):
            while not any(pod["metadata"]["name"] == name and pod["status"]["phase"] == "Running" for pod in await self.kubelet.pods()):
                await asyncio.sleep(0.05)


@pytest.fixture
def ours(api_server: ApiServer, namespace: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """A namespace with a conductor's account, and the way there."""
    allow(api_server, namespace)
    monkeypatch.setenv(KUBECONFIG_VARIABLE, str(api_server.kubeconfig_for(ACCOUNT, namespace, proxy.url)))
    return namespace


@contextlib.asynccontextmanager
async def cluster(server: ApiServer, namespace: str, folder: Path, script: str, **settings: Any) -> AsyncIterator[Cluster]:
    work = task(folder / "task")
    async with server.client() as admin, await connect() as api, Kubelet(admin, namespace, folder / "node").working() as kubelet:
        pods = Pods(api, namespace, selector("small"))
        async with world_around(pods, folder, job("generic", command=["bash", "-c", script]), work, namespace=namespace, **settings) as world:
            yield Cluster(world, kubelet, work)


async def test_an_execution_runs_and_is_scored_with_a_conductors_rights_in_a_restricted_namespace(
    api_server: ApiServer, ours: str, tmp_path: Path
) -> None:
    async with cluster(api_server, ours, tmp_path, SOLVE) as here:
        assert (await here.run()).exit_code == 0
        assert await here.score() == 1.0
        assert await here.names() == []
    asked = audited(api_server.audit, f"system:serviceaccount:{ours}:{ACCOUNT}")
    assert {(call.verb, call.resource) for call in asked} <= {(verb, "pods") for verb in ("create", "get", "list", "watch", "delete")}
    assert not [call for call in asked if call.status == 403]


async def test_a_pod_whose_making_was_not_heard_of_is_made_once(api_server: ApiServer, ours: str, proxy: FaultProxy, tmp_path: Path) -> None:
    async with cluster(api_server, ours, tmp_path, SOLVE) as here:
        lost = proxy.lose_answers("POST", "/pods$")
        proxy.answer(500, "POST", "/pods$", count=1)
        assert (await here.run()).exit_code == 0
    assert lost.hits == 1
    made = [call for call in audited(api_server.audit, f"system:serviceaccount:{ours}:{ACCOUNT}") if call.verb == "create"]
    assert [call.status for call in made] == [201, 409]


async def test_a_run_goes_on_through_lost_watches_and_an_api_server_in_trouble(
    api_server: ApiServer, ours: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    async with cluster(api_server, ours, tmp_path, f"{SOLVE}; while ! [ -e /app/go ]; do sleep 0.05; done") as here:
        running = asyncio.create_task(here.run())
        await here.running()
        await until(lambda: proxy.open_watches("pods") == 1)
        busy = proxy.answer(429, "GET", "/pods", count=2, retry_after_seconds=1)
        assert proxy.drop_watches() == 1
        await until(lambda: busy.hits == 2 and proxy.open_watches("pods") == 1)
        lists = proxy.count("list", "pods")
        assert proxy.drop_watches(expired=True) == 1
        await until(lambda: proxy.count("list", "pods") > lists and proxy.open_watches("pods") == 1)
        away = proxy.answer(503, count=10_000)
        proxy.drop_watches()
        (here.kubelet.folders["small-e-1-1"] / "app" / "go").touch()
        await until(lambda: here.world.path("brought.tar").exists())
        await until(lambda: away.hits > 3)
        assert not running.done()
        proxy.heal()
        assert (await running).exit_code == 0
        assert await here.names() == []


async def test_a_deadline_holds_while_the_api_server_is_away(api_server: ApiServer, ours: str, proxy: FaultProxy, tmp_path: Path) -> None:
    async with cluster(api_server, ours, tmp_path, "sleep 1000") as here:
        running = asyncio.create_task(here.run(seconds=4.0))
        await here.running()
        proxy.answer(503, count=10_000)
        proxy.drop_watches()
        await until(lambda: here.world.path("brought.tar").exists(), 20)
        proxy.heal()
        assert (await running).timed_out


async def test_an_attempt_that_cannot_begin_because_the_api_server_is_away_fails_in_time(
    api_server: ApiServer, ours: str, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.answer(503, count=10_000)
    async with cluster(api_server, ours, tmp_path, SOLVE) as here:
        with pytest.raises(SandboxBroken, match="is the API server away"):
            await here.run(seconds=1.0)
        proxy.heal()
        assert (await here.run(attempt=2)).exit_code == 0
        proxy.answer(503, "POST", count=10_000)
        with pytest.raises(SandboxBroken, match="could not be made in time: 503"):
            await here.run(attempt=3, seconds=1.0)
        proxy.heal()


async def test_a_new_conductor_removes_what_the_last_one_left_and_nothing_else(api_server: ApiServer, ours: str, tmp_path: Path) -> None:
    async with api_server.client() as admin, Kubelet(admin, ours, tmp_path / "before").working() as kubelet:
        await left_behind(api_server, ours, kubelet)
    async with cluster(api_server, ours, tmp_path, SOLVE) as here:
        assert (await here.run()).exit_code == 0, "also where one of the same name was left"
        assert await here.names() == ["other-e-1-1"]


async def left_behind(server: ApiServer, namespace: str, kubelet: Kubelet) -> None:
    """Pods of an earlier conductor, and one of another job's."""
    kubelet.runs = False
    async with await connect() as api:
        for name, execution in (("small", "e-1"), ("small", "e-7"), ("other", "e-1")):
            settings = PodSettings(namespace, name, "product", "http://127.0.0.1:1")
            pod = harness_pod(settings, None, Errand("sandbox", execution, 1, "before", execution, "key", 60.0))
            await Pods(api, namespace, "").create(pod)
    async with asyncio.timeout(10):
        while [pod for pod in await kubelet.pods() if "nodeName" not in pod["spec"]]:
            await asyncio.sleep(0.05)


async def test_a_quota_is_waited_for_and_then_breaks_the_attempt(api_server: ApiServer, ours: str, tmp_path: Path) -> None:
    api_server.kubectl("create", "quota", "full", "--hard=pods=0", f"--namespace={ours}")
    async with cluster(api_server, ours, tmp_path, SOLVE) as here:
        with pytest.raises(SandboxBroken, match=r"could not be made in time: 403 Forbidden.*exceeded quota"):
            await here.run(seconds=2.0)
        running = asyncio.create_task(here.run(attempt=2))
        await asyncio.sleep(0.5)
        api_server.kubectl("delete", "quota", "full", f"--namespace={ours}")
        assert (await running).exit_code == 0


async def test_a_pod_that_admission_refuses_breaks_the_attempt_at_once(api_server: ApiServer, ours: str, tmp_path: Path) -> None:
    template = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}
    async with cluster(api_server, ours, tmp_path, SOLVE, template=template) as here:
        with pytest.raises(SandboxBroken, match=r"was refused: 403 Forbidden.*violates PodSecurity"):
            await here.run()
        assert "violates PodSecurity" in here.world.sandboxes.trouble


async def test_how_a_pod_ends_says_who_is_to_blame(api_server: ApiServer, ours: str, tmp_path: Path) -> None:
    async with cluster(api_server, ours, tmp_path, SOLVE) as here:
        here.kubelet.runs = False
        ended = {"exitCode": 137, "reason": "OOMKilled"}
        assert (
            await play(here, 1, {"phase": "Failed", "containerStatuses": [{"name": "sandbox", "state": {"terminated": ended}}]})
        ).stopped.startswith("memory")
        for attempt, status in enumerate(
            (
                {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
                {"phase": "Pending", "initContainerStatuses": [{"name": "prepare", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}]},
                {"phase": "Failed", "initContainerStatuses": [{"name": "prepare", "state": {"terminated": ended}}]},
            ),
            start=2,
        ):
            with pytest.raises(SandboxBroken):
                await play(here, attempt, status)
        assert await here.names() == []


async def test_what_keeps_sandboxes_from_starting_is_told_until_one_starts(api_server: ApiServer, ours: str, tmp_path: Path) -> None:
    cannot = {"phase": "Pending", "containerStatuses": [{"name": "sandbox", "state": {"waiting": {"reason": "ErrImageNeverPull"}}}]}
    async with cluster(api_server, ours, tmp_path, SOLVE) as here:
        assert here.world.sandboxes.trouble == ""
        here.kubelet.runs = False
        with pytest.raises(SandboxBroken):
            await play(here, 1, cannot)
        assert "pod small-e-1-1 cannot start: container sandbox: ErrImageNeverPull" in here.world.sandboxes.trouble
        assert "the job goes on by itself" in here.world.sandboxes.trouble
        here.kubelet.runs = True
        assert (await here.run(attempt=2)).exit_code == 0
        assert here.world.sandboxes.trouble == ""


async def play(here: Cluster, attempt: int, status: dict[str, Any]) -> HarnessEnd:
    running = asyncio.create_task(here.run(attempt))
    async with asyncio.timeout(10):
        while f"small-e-1-{attempt}" not in await here.names():
            await asyncio.sleep(0.05)
    await here.kubelet.say(f"small-e-1-{attempt}", status)
    return await running


async def test_a_pod_on_a_lost_node_is_struck_from_the_list(
    api_server: ApiServer, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podlives, "FORCE_SECONDS", 1.0)
    async with cluster(api_server, ours, tmp_path, "sleep 1000") as here:
        running = asyncio.create_task(here.run())
        await here.running()
        here.kubelet.ends = False
        api_server.kubectl("delete", "pod", "small-e-1-1", f"--namespace={ours}", "--wait=false")
        with pytest.raises(SandboxBroken, match="deleted by somebody else"):
            await running
        assert await here.names() == []


async def test_the_cluster_removes_sandboxes_whose_conductor_is_gone(api_server: ApiServer, ours: str, tmp_path: Path) -> None:
    uid = conductor_pod(api_server, ours)
    settings = PodSettings(ours, "small", "product", "http://127.0.0.1:1")
    errand = Errand("sandbox", "e-1", 1, "run", "e-1", "key", 60.0)
    async with await connect() as api:
        pods = Pods(api, ours, selector("small"))
        await pods.create(harness_pod(settings, Owner("small-conductor-0", uid), errand))
        api_server.kubectl("delete", "pod", "small-conductor-0", f"--namespace={ours}", "--grace-period=0", "--force")
        async with asyncio.timeout(30):
            while (await pods.list())[0]:
                await asyncio.sleep(0.1)


async def test_a_conductor_in_a_pod_is_who_its_mounted_token_says(
    api_server: ApiServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(api_server, namespace)
    (tmp_path / "token").write_text(api_server.token_for(ACCOUNT, namespace))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(api_server.control_plane.access.trust))
    with pytest.raises(NoCluster, match=r"need a conductor in a pod with its service account's token, or TIDEMILL_KUBECONFIG"):
        await connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api_server.url.rpartition(":")[2])
    async with await connect() as api:
        assert (await Pods(api, namespace, selector("small")).list())[0] == {}
        with pytest.raises(ApiError, match="403"):
            await Pods(api, "default", selector("small")).list()
