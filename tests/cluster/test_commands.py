"""The commands for users of a cluster, against a real API server: with real rights, real watches, a real token and a real conductor."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.access import KubectlFailed
from tests.cluster.api_server import ApiServer
from tests.cluster.operator_process import cluster, is_, job
from tests.cluster.operator_stand_ins import processes
from tests.cluster.port_forward_stand_in import node_with_pods
from tests.cluster.proxy import FaultProxy
from tests.helm.chart import context_of, render, text_of
from tests.rollout.jobs import task
from tests.tidemill.cluster import documents
from tidemill.api import RLJob, load_rljob
from tidemill.cli.main import main
from tidemill.cluster.api import JOBS, Kind
from tidemill.cluster.following import Seen, follow
from tidemill.cluster.kubeconfig import Place, connect
from tidemill.cluster.trouble import ClusterTrouble, NotThere
from tidemill.local.ports import free_ports
from tidemill.telemetry.events import AnyEvent, JobEnded, JobStarted, StepCommitted
from tidemill_operator import storage

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def sail(api_server: ApiServer, namespace: str) -> str:
    """The namespace of job `sail`, with three cells, as the operator keeps them."""
    put(api_server, namespace, documents.job())
    for cell in documents.cells():
        put(api_server, namespace, cell)
    return namespace


def put(server: ApiServer, namespace: str, document: dict[str, Any]) -> None:
    meta = {"name": document["metadata"]["name"], "labels": document["metadata"].get("labels", {})}
    server.kubectl("create", "-f", "-", "-n", namespace, input=json.dumps({**document, "metadata": meta}))
    set_status(server, namespace, document["kind"].lower(), meta["name"], document["status"])


def set_status(server: ApiServer, namespace: str, kind: str, name: str, status: dict[str, Any]) -> None:
    server.kubectl("patch", kind, name, "-n", namespace, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": status}))


def tidemill(server: ApiServer, namespace: str, *words: str, kubeconfig: Path | None = None) -> int:
    return main([*words, "-n", namespace, "--kubeconfig", str(kubeconfig or server.kubeconfig)])


@contextmanager
def user(server: ApiServer, namespace: str, role: str) -> Iterator[Path]:
    """Somebody who holds the cluster's own role `view` or `edit` here, where the chart is installed."""
    roles = [m for m in render(None, namespace, namespace) if m["kind"] == "ClusterRole" and m["metadata"]["name"].endswith(("-viewer", "-editor"))]
    assert len(roles) == 2
    server.kubectl("apply", "-f", "-", input=text_of(roles))
    server.kubectl("create", "serviceaccount", role, "-n", namespace)
    server.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--serviceaccount={namespace}:{role}", "-n", namespace)
    kubeconfig = server.kubeconfig_for(role, namespace)
    try:
        wait_for_right(server, namespace, role)
        yield kubeconfig
    finally:
        server.kubectl("delete", "clusterrole", *(m["metadata"]["name"] for m in roles))


def wait_for_right(server: ApiServer, namespace: str, account: str) -> None:
    """A controller adds the chart's rules to the cluster's own roles, a moment later."""
    deadline = time.monotonic() + 30
    while True:
        try:
            server.kubectl("auth", "can-i", "watch", "gpucells.tidemill.dev", "-n", namespace, f"--as=system:serviceaccount:{namespace}:{account}")
            return
        except KubectlFailed:
            assert time.monotonic() < deadline


def test_status_shows_the_job_its_cells_and_what_is_wrong(api_server: ApiServer, sail: str, capsys: Printed) -> None:
    assert tidemill(api_server, sail, "status") == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        f"sail {sail} Elastic Running",
        "step 3 / 12",
        "waterlevel 7 / 16",
        "limited by Training",
        "cell-0 Training 4 1 gpu-3 +1 to Training in 8.5 s, 3 answers moved (drain 2.2, sleep 6.2)",
        "cell-1 Flipping (pinned to Rollout) 3 1 gpu-7",
        "OOMKilled: pod sail-cell-1-0: OOMKilled; raise spec.cells.resources.memory",
    ):
        assert part in shown

    assert tidemill(api_server, sail, "status", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"]["water"], [c["word"] for c in told["cells"]]) == ("7/16", ["Training", "Flipping", "Rollout"])
    assert [(c["type"], c["reason"]) for c in told["notFine"]] == [("PodsHealthy", "OOMKilled")]


def test_a_job_that_is_not_there_is_answered_with_the_nearest_name_or_namespace(api_server: ApiServer, sail: str, capsys: Printed) -> None:
    assert tidemill(api_server, sail, "status", "sial") == 2
    assert capsys.readouterr().err == f"rljob sial is not in namespace {sail}; did you mean sail?\n"
    assert tidemill(api_server, f"{sail}-x", "status", "sail") == 2
    assert "which has no jobs; namespace test-" in capsys.readouterr().err
    assert tidemill(api_server, sail, "drain", "cell-7") == 2
    assert capsys.readouterr().err == "rljob sail has no cell cell-7; did you mean cell-1?\n"
    put(api_server, sail, documents.job("boat"))
    assert tidemill(api_server, sail, "status") == 2
    assert capsys.readouterr().err == f"namespace {sail} has 2 jobs; say which: boat, sail\n"


async def test_a_cluster_without_the_definitions_is_told_from_one_without_the_job(api_server: ApiServer, namespace: str) -> None:
    async with connect(Place(namespace, kubeconfig=str(api_server.kubeconfig))) as here:
        with pytest.raises(ClusterTrouble, match=r"does not know rljobs.elsewhere.tidemill.dev: install Tidemill with helm") as trouble:
            await here.get(Kind("rljobs", "elsewhere.tidemill.dev", "v1alpha1"), "sail")
        assert not isinstance(trouble.value, NotThere)
        with pytest.raises(NotThere, match='"sail" not found'):
            await here.get(JOBS, "sail")


def test_a_viewer_may_look_and_is_told_which_right_a_change_needs(api_server: ApiServer, sail: str, capsys: Printed) -> None:
    with user(api_server, sail, "view") as viewer:
        capsys.readouterr()
        for words in (["status"], ["top", "sail"]):
            if words[0] == "top":
                set_status(api_server, sail, "rljob", "sail", {"phase": "Succeeded"})
            assert tidemill(api_server, sail, *words, kubeconfig=viewer) == 0
        set_status(api_server, sail, "rljob", "sail", {"phase": "Running"})
        capsys.readouterr()
        for words, right in (
            (["flip", "cell-1", "Rollout"], "patch gpucells.tidemill.dev"),
            (["drain", "sail", "cell-1"], "patch gpucells.tidemill.dev"),
            (["suspend"], "patch rljobs.tidemill.dev"),
            (["timeline"], "create serviceaccounts/token"),
        ):
            assert tidemill(api_server, sail, *words, kubeconfig=viewer) == 2
            told = capsys.readouterr().err
            assert f"you lack a right: {right} in namespace {sail} (the cluster knows you as system:serviceaccount:{sail}:view)" in told
            assert "the role edit has it" in told
    assert api_server.get("gpucell", "sail-cell-1", "-n", sail)["spec"]["pin"] == "Rollout"


def test_somebody_without_rights_is_told_who_may_look(api_server: ApiServer, sail: str, capsys: Printed) -> None:
    assert tidemill(api_server, sail, "status", "sail", kubeconfig=api_server.kubeconfig_for("default", sail)) == 2
    told = capsys.readouterr().err
    assert "you lack a right: get rljobs.tidemill.dev" in told
    assert "the role view has it" in told


def test_an_editor_changes_what_the_operator_acts_upon(api_server: ApiServer, sail: str, capsys: Printed) -> None:
    def spec(kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = api_server.get(kind, name, "-n", sail)["spec"]
        return found

    with user(api_server, sail, "edit") as editor:

        def does(*words: str) -> int:
            return tidemill(api_server, sail, *words, kubeconfig=editor)

        assert does("flip", "sail", "cell-1", "Training") == 0
        assert spec("gpucell", "sail-cell-1")["pin"] == "Training"
        assert does("flip", "sail-cell-1", "--release") == 0
        assert "pin" not in spec("gpucell", "sail-cell-1")
        assert does("drain", "sail", "sail-cell-0") == 0
        assert spec("gpucell", "sail-cell-0")["cordon"] is True
        assert does("drain", "sail", "cell-0", "--undo") == 0
        assert spec("gpucell", "sail-cell-0")["cordon"] is False
        assert does("suspend") == 0
        assert spec("rljob", "sail")["suspend"] is True
        assert does("resume", "sail") == 0
        assert spec("rljob", "sail")["suspend"] is False
        assert does("drain", "cell-0", "--wait", "0.5") == 1
        assert "not drained after 0.5 s" in capsys.readouterr().out
        assert does("flip", "standalone-0", "Training") == 2
        assert "it only ever rolls out" in capsys.readouterr().err
    set_status(api_server, sail, "rljob", "sail", {"phase": "Failed"})
    assert tidemill(api_server, sail, "suspend") == 2
    assert "has ended (Failed): nothing of it can be changed" in capsys.readouterr().err


def test_top_follows_a_job_until_it_ends(api_server: ApiServer, sail: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidemill.cli.main", "top", "-n", sail, "--kubeconfig", str(api_server.kubeconfig)]
    with (tmp_path / "shown").open("wb") as out, subprocess.Popen(command, stderr=out) as watching:

        def until(part: str) -> None:
            deadline = time.monotonic() + 30
            while part not in (shown := (tmp_path / "shown").read_text()):
                assert time.monotonic() < deadline, shown
                assert watching.poll() is None, shown
                time.sleep(0.1)

        try:
            until("Running step 3/12 burst 2 version 1 water 7/16 limited by Training score 0.53 eta 3h20m cell-0=Training cell-1=Flipping")
            set_status(api_server, sail, "gpucell", "sail-cell-1", {"epoch": 3})
            until("cell-1=Rollout")
            set_status(api_server, sail, "rljob", "sail", {"step": 4, "progress": "4/12"})
            until("step 4/12")
            finished = documents.condition("Finished", "True", "Failed", "the disk is full")
            set_status(api_server, sail, "rljob", "sail", {"phase": "Failed", "conditions": [finished]})
            assert watching.wait(20) == 1
        finally:
            watching.kill()
    assert "rljob sail: Failed: the disk is full" in (tmp_path / "shown").read_text()


async def test_a_job_is_followed_through_lost_and_expired_watches_and_an_absent_api_server(
    api_server: ApiServer, sail: str, proxy: FaultProxy
) -> None:
    api_server.kubectl("create", "role", "looks", "--verb=get,list,watch", "--resource=rljobs.tidemill.dev,gpucells.tidemill.dev", "-n", sail)
    api_server.kubectl("create", "rolebinding", "looks", "--role=looks", f"--serviceaccount={sail}:default", "-n", sail)
    kubeconfig = await asyncio.to_thread(api_server.kubeconfig_for, "default", sail, proxy.url)
    seen: list[Seen] = []

    def tell(now: Seen) -> bool:
        seen.append(now)
        return now.job.ended

    async def until(so: Callable[[Seen], bool]) -> None:
        async with asyncio.timeout(20):
            while not (seen and so(seen[-1])):
                await asyncio.sleep(0.05)

    async def step(number: int) -> None:
        await asyncio.to_thread(set_status, api_server, sail, "rljob", "sail", {"step": number})
        await until(lambda now: now.job.status.step == number)

    async with connect(Place(sail, kubeconfig=str(kubeconfig))) as here:
        following = asyncio.create_task(follow(here, "sail", tell))
        await until(lambda now: len(now.cells) == 3)
        await step(4)
        assert await asyncio.to_thread(proxy.drop_watches) == 2
        await step(5)
        assert await asyncio.to_thread(proxy.drop_watches, ".*", True) == 2
        await step(6)
        away = proxy.answer(503, count=10_000)
        await asyncio.to_thread(proxy.drop_watches)
        await until(lambda now: "status 503" in now.trouble)
        assert seen[-1].job.status.step == 6
        proxy.heal()
        await until(lambda now: not now.trouble)
        assert away.hits < 20
        await asyncio.to_thread(api_server.kubectl, "delete", "gpucell", "sail-cell-1", "-n", sail)
        await until(lambda now: len(now.cells) == 2)
        await asyncio.to_thread(api_server.kubectl, "delete", "rljob", "sail", "-n", sail)
        assert await asyncio.wait_for(following, 20) is None


async def test_flips_drains_and_suspensions_reach_the_job_through_the_operator(
    api_server: ApiServer, namespace: str, tmp_path: Path, capsys: Printed
) -> None:
    async def does(*words: str) -> int:
        return await asyncio.to_thread(tidemill, api_server, namespace, *words)

    cells = ["cell-0", "cell-1", "cell-2"]
    async with cluster(api_server, namespace, tmp_path) as here, processes(cells, dispatched=0, groups_due=0) as there:
        await here.start()
        await here.submit(job(cells=3), there.conductor.url)
        await here.until(here.phase, is_("Running"))

        assert await does("flip", "cell-2", "Rollout", "--wait", "20") == 0
        pinned = await here.until(async_of(lambda: there.conductor.constraints.get("cell-2")))
        assert pinned is not None
        assert pinned.pin == "Rollout"
        assert await does("drain", "job", "cell-1", "--wait", "20") == 0
        assert there.conductor.constraints["cell-1"].cordon
        assert "job-cell-1: drained" in capsys.readouterr().out
        assert await does("drain", "job", "cell-1", "--undo", "--wait", "20") == 0
        await here.until(async_of(lambda: not there.conductor.constraints["cell-1"].cordon))
        assert await does("suspend", "--wait", "30") == 0
        assert there.conductor.suspended
        assert not await here.pods()
        assert await does("resume", "--wait", "30") == 0
        assert not there.conductor.suspended


def async_of[T](ask: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    async def answer() -> T:
        return ask()

    return answer


def test_the_report_of_a_job_that_has_ended_comes_from_what_the_operator_kept(
    api_server: ApiServer, sail: str, tmp_path: Path, capsys: Printed
) -> None:
    set_status(api_server, sail, "rljob", "sail", {"phase": "Succeeded"})
    assert tidemill(api_server, sail, "timeline", "--out", str(tmp_path / "report")) == 2
    assert "its events were not kept" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()

    started = JobStarted(time=1.0, job="sail", mode="Elastic", steps=12, cells=("cell-0",), capacities=(8,), cores_shared=False)
    kept = storage.history(context_of(manifest_in(tmp_path), sail), lines_of(started, step_of(1), JobEnded(time=9.0, phase="Succeeded")))
    meta = {"name": kept["metadata"]["name"], "namespace": sail}
    api_server.kubectl("create", "-f", "-", input=json.dumps({**kept, "metadata": meta}))
    assert tidemill(api_server, sail, "timeline", "--out", str(tmp_path / "report")) == 0
    assert "3 events from ConfigMap sail-history" in capsys.readouterr().err
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Succeeded" in page
    assert "1 of 12" in page
    assert (tmp_path / "report" / "timeline.png").stat().st_size > 1000


async def test_the_report_of_a_running_job_comes_from_its_conductor_through_the_api_server(
    api_server: ApiServer, sail: str, tmp_path: Path, capsys: Printed
) -> None:
    """An editor's rights: a token of the conductor's account, and its pod's port."""
    (port,) = free_ports(1)
    with user(api_server, sail, "edit") as editor, conductor(api_server, sail, tmp_path, port):
        async with node_with_pods(api_server, sail, {"sail-conductor-0": port}):
            out = ["timeline", "sail", "--out", str(tmp_path / "report")]
            deadline = time.monotonic() + 60
            while await asyncio.to_thread(lambda: tidemill(api_server, sail, *out, kubeconfig=editor)):
                assert time.monotonic() < deadline, capsys.readouterr().err
                assert "the conductor of rljob sail cannot be asked" in capsys.readouterr().err  # it is starting
                await asyncio.sleep(0.5)
    assert "from conductor sail-conductor-0" in capsys.readouterr().err
    assert "sail" in (tmp_path / "report" / "report.html").read_text()


@contextmanager
def conductor(server: ApiServer, namespace: str, folder: Path, port: int) -> Iterator[None]:
    """The real one, which believes what this cluster signs; no cells report to it."""
    manifest_in(folder)
    task(folder / "tasks" / "copy")
    for name in ("sail-conductor", "sail-cell"):
        server.kubectl("create", "serviceaccount", name, f"--namespace={namespace}")
    trust = {
        "issuer": json.loads(server.kubectl("get", "--raw", "/.well-known/openid-configuration"))["issuer"],
        "audience": "tidemill.dev",
        "subjects": [f"system:serviceaccount:{namespace}:sail-conductor"],
        "keys": json.loads(server.kubectl("get", "--raw", "/openid/v1/jwks")),
    }
    (folder / "trust.json").write_text(json.dumps(trust))
    (folder / "token").write_text(server.token_for("sail-conductor", namespace, "tidemill.dev"))
    identity = {"TIDEMILL_TOKEN_FILE": str(folder / "token"), "TIDEMILL_TRUST": str(folder / "trust.json")}
    environment = {name: value for name, value in os.environ.items() if name != "TIDEMILL_TOKEN"} | identity
    command = [sys.executable, "-m", "tidemill_rollout.conductor", "--manifest", str(folder / "job.yaml"), "--workdir", str(folder)]
    command += ["--port", str(port), "--gateway-url", "http://127.0.0.1:9", "--unsafe-sandbox"]
    with (folder / "log").open("ab") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            yield
        finally:
            process.terminate()


def manifest_in(folder: Path) -> RLJob:
    """The job that a conductor in this folder reads."""
    manifest = {**documents.MANIFEST, "spec": {**documents.MANIFEST["spec"], "tasks": {"source": f"path:{folder / 'tasks'}"}}}
    (folder / "job.yaml").write_text(json.dumps(manifest))
    return load_rljob(folder / "job.yaml")


def step_of(number: int) -> StepCommitted:
    return StepCommitted(
        time=2.0 + number, step=number, seconds=1.0, groups=2, executions=4, trained_tokens=10, mean_score=0.5, staleness=0, statistics={},
        contributions={"cell-0": 2},
    )  # fmt: skip


def lines_of(*events: AnyEvent) -> bytes:
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)
