"""What the one job of the test lives through, in this order. Each part returns what it saw; nothing is asserted about the whole before the end."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.access import KubectlFailed
from tests.cluster.node.installation import NAMESPACE, OPERATOR, RELEASE
from tests.cluster.node.lived import ClusterJob, manifest
from tests.cluster.node.strikes import Strike, agent, another, leases_of, live_calls, processes_of, ready, remove, send, strike, try_to_strike
from tidemill.cli.main import main
from tidemill.telemetry.events import FlipEnded
from tidemill.wire.cell import Role

CELLS = ("cell-0", "cell-1", "cell-2")
PODS = tuple(f"tiny-{cell}-0" for cell in CELLS)
BURSTS_WITHOUT_API_SERVER = 2
MOST_TRIES = 5

PROBE = """
import concurrent.futures, json, os, socket, sys
def attempt(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        return "open"
    except OSError as error:
        return type(error).__name__
targets = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(len(targets)) as pool:
    said = dict(zip(targets, pool.map(attempt, targets.values())))
try:
    said["a name"] = socket.gethostbyname("example.com")
except OSError as error:
    said["a name"] = type(error).__name__
said["token"] = "there" if os.path.exists("/var/run/secrets/kubernetes.io") else "none"
print(json.dumps(said))
"""


@dataclass(frozen=True, slots=True)
class Outage:
    bursts: int
    flips: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    step: int  # before, and while nothing ran
    steps_after: tuple[int, ...]


def uids(job: ClusterJob) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in job.pods("cell").items()}


def start(job: ClusterJob) -> None:
    job.wait_for("conductor, gateway and cells are ready", lambda: {n for n, p in job.pods().items() if ready(p)} >= set(PODS), 600)
    job.note("all pods are ready")


def flips_in_place(job: ClusterJob, count: int) -> tuple[dict[str, str], dict[str, str]]:
    """The cells' pods when they are ready, and after so many flips."""
    before = uids(job)
    job.wait_for(f"{count} flips", lambda: sum(isinstance(event, FlipEnded) for event in job.events()) >= count)
    job.note(f"{count} flips")
    return before, uids(job)


def from_inside_a_sandbox(job: ClusterJob) -> dict[str, str]:
    """What connects from the pod of a running harness."""
    pods, services = job.pods(), {s["metadata"]["name"]: s["spec"]["clusterIP"] for s in job.get("services")["items"]}
    targets = {
        "gateway": f"{services['tiny-gateway-0']}:7001",
        "API server": "10.96.0.1:443",
        "API server's machine": "10.77.0.1:6443",
        "conductor": f"{services['tiny-conductor']}:7000",
        "conductor's pod": f"{pods['tiny-conductor-0']['status']['podIP']}:7000",
        "operator": f"{operator_pods(job)[0]['status']['podIP']}:8080",
        **{f"agent of {cell}": f"{pods[f'tiny-{cell}-0']['status']['podIP']}:7002" for cell in CELLS},
        **{f"trainer of {cell}": f"{pods[f'tiny-{cell}-0']['status']['podIP']}:7004" for cell in CELLS},
        **{f"kubelet of {node.name}": f"{node.addresses.node}:10250" for node in job.cluster.nodes},
    }

    def begun() -> tuple[str, list[int]] | None:
        pods = job.pods("sandbox").items()
        found = ((name, processes_of(job.cluster, pod["metadata"]["uid"], "writer.py")) for name, pod in pods)
        return next(((name, harness) for name, harness in found if harness), None)

    def said(name: str) -> dict[str, str]:
        try:
            return dict(json.loads(job.kubectl("exec", name, "--container=sandbox", "--", "python3", "-c", PROBE, json.dumps(targets))))
        except (KubectlFailed, ValueError):
            return {}  # the kubelet has yet to see that it runs

    started = job.wait_for("a harness runs", begun)
    assert started
    name, harness = started
    send(signal.SIGSTOP, harness)  # so that its pod stays
    try:
        found = job.wait_for("something is tried from inside a sandbox", lambda: said(name), 60)
    finally:
        send(signal.SIGCONT, harness)
    job.note(f"from inside a sandbox: {found}")
    return found


def kill_a_cell_in_rollout(job: ClusterJob) -> Strike:
    pod, uid, port = "tiny-cell-1-0", job.uid("tiny-cell-1-0"), agent(job, "cell-1")

    def look() -> tuple[str, ...]:
        calls = live_calls(port)
        return (f"{calls} calls in flight",) if calls >= 2 else ()

    struck = strike(job, "cell in rollout", pod, look, told_by_victim=True)
    remove(job, pod)
    another(job, pod, uid)
    return struck


def kill_a_cell_in_mid_step(job: ClusterJob) -> Strike:
    """Left to itself the core is soon done with what is ready, and the satellite is not needed: so there is much to do at once."""
    pod, uid = "tiny-cell-1-0", job.uid("tiny-cell-1-0")
    struck = None
    for _ in range(MOST_TRIES):
        gather_groups(job)
        pin(job, "Training", "cell-1")
        pin(job, None, "cell-0", "cell-2")
        if struck := try_to_strike(job, "cell in mid-step", pod, lambda: leases_of(job, "cell-1"), seconds=60.0):
            break
    assert struck is not None, f"the satellite was never seen in mid-step\n{job.story()}"
    pin(job, None, "cell-1")
    remove(job, pod)
    another(job, pod, uid)
    return struck


def kill_the_cores_trainer(job: ClusterJob) -> Strike:
    lives = job.number("SELECT COUNT(*) FROM trainers WHERE cell = 'cell-0'")
    struck = strike(job, "core's trainer in mid-step", "tiny-cell-0-0", lambda: leases_of(job, "cell-0"), word="tidemill_trainer")
    job.wait_for("the core's trainer asks again", lambda: job.number("SELECT COUNT(*) FROM trainers WHERE cell = 'cell-0'") > lives)
    return struck


def kill_the_gateway(job: ClusterJob) -> Strike:
    pod, uid, ports = "tiny-gateway-0", job.uid("tiny-gateway-0"), [agent(job, cell) for cell in CELLS]

    def look() -> tuple[str, ...]:
        calls = sum(live_calls(port) for port in ports)
        return (f"{calls} calls in flight",) if calls >= 2 else ()

    struck = strike(job, "gateway", pod, look)
    remove(job, pod)
    another(job, pod, uid)
    return struck


def kill_the_conductor(job: ClusterJob) -> Strike:
    pod, uid = "tiny-conductor-0", job.uid("tiny-conductor-0")

    def look() -> tuple[str, ...]:
        rows = job.query("SELECT id FROM executions WHERE state = 'Running'")
        return tuple(row["id"] for row in rows) if len(rows) >= 2 else ()

    struck = strike(job, "conductor", pod, look)
    remove(job, pod)
    another(job, pod, uid)
    return struck


def evict_a_cell(job: ClusterJob) -> str:
    """As a drain of its node does. What its agent was last heard to do."""
    pod = "tiny-cell-2-0"
    uid = job.uid(pod)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": job.namespace}}
    path = f"/api/v1/namespaces/{job.namespace}/pods/{pod}/eviction"

    def evicted() -> bool:
        try:
            job.kubectl("create", f"--raw={path}", "--filename=-", input=json.dumps(eviction))
        except KubectlFailed as refusal:
            if "disruption budget" in str(refusal):  # until the controller has counted the pods that have just come
                return False
            raise
        return True

    job.wait_for("the eviction is granted", evicted, 60)
    job.note(f"{pod} is evicted")
    phase = job.wait_for("its agent hands over", lambda: (now := job.get("gpucell", "tiny-cell-2")["status"]["phase"]) == "Leaving" and now, 60)
    another(job, pod, uid)
    return str(phase)


def kill_the_leader(job: ClusterJob) -> tuple[str, str]:
    """The operator that led, and the one that leads after it was killed."""
    before = leader(job)
    job.cluster.kubectl("delete", "pod", before, f"--namespace={NAMESPACE}", "--force", "--grace-period=0", "--wait=false")
    after = job.wait_for("another operator leads", lambda: (found := leader(job)) != before and found)
    job.note(f"{after} leads after {before} was killed")
    return before, str(after)


def leader(job: ClusterJob) -> str:
    holder = job.cluster.get("lease", OPERATOR, f"--namespace={NAMESPACE}")["spec"].get("holderIdentity") or ""
    return str(holder).partition("_")[0]


def suspend_and_resume(job: ClusterJob) -> Pause:
    patch(job, {"spec": {"suspend": True}})
    job.wait_for_phase("Suspended", 240)
    job.wait_for("no pod is left", lambda: not job.pods(), 60)
    step = job.number("SELECT committed_steps FROM job")
    job.note("suspended")
    patch(job, {"spec": {"suspend": False}})
    job.wait_for_phase("Running")
    after = job.wait_for(
        "a step after that", lambda: [r["step"] + 1 for r in job.query(f"SELECT step FROM steps WHERE step >= {step} AND committed > 0")]
    )
    job.note("resumed")
    return Pause(step, tuple(after))


def without_api_server_and_operators(job: ClusterJob) -> Outage:
    """Groups are ready for some bursts, for nothing new can be started. Then the conductor decides alone."""
    gather_groups(job)
    trainer = processes_of(job.cluster, job.uid("tiny-cell-0-0"), "tidemill_trainer")
    send(signal.SIGSTOP, trainer)  # or what is ready would be trained before the API server is off
    try:
        pin(job, None, *CELLS)
        job.wait_for("the conductor knows that nothing is pinned any more", lambda: not job.query("SELECT 1 FROM constraints WHERE pinned <> ''"), 60)
        operators = [process for pod in operator_pods(job) for process in processes_of(job.cluster, pod["metadata"]["uid"])]
        job.cluster.stop_api_server()
        send(signal.SIGKILL, operators)
        began, burst = time.time(), job.number("SELECT COUNT(*) FROM bursts WHERE ended IS NOT NULL")
    finally:
        send(signal.SIGCONT, trainer)
    job.note("neither API server nor operators")

    def ended() -> int:
        return job.number("SELECT COUNT(*) FROM bursts WHERE ended IS NOT NULL") - burst

    def flips() -> tuple[Role, ...]:
        return tuple(event.to for event in job.events() if isinstance(event, FlipEnded) and event.time > began)

    try:
        # The core trains on until nothing is ready any more, and then flips back.
        job.wait_for("two bursts, and flips both ways", lambda: ended() >= BURSTS_WITHOUT_API_SERVER and {*flips()} == {*Role})
    finally:
        outage = Outage(ended(), flips())
        job.cluster.start_api_server()
    job.note(f"API server again, after {outage.bursts} bursts")
    job.wait_for("an operator leads", lambda: leader(job) and job.status.get("phase") == "Running")
    job.wait_for("the objects say what was granted meanwhile", lambda: epochs_written(job) == epochs_granted(job))
    job.note("the operator mirrors what was granted")
    return outage


def gather_groups(job: ClusterJob) -> None:
    """With all cells in rollout nothing is trained, and groups gather until all that was dispatched ahead is done."""
    pin(job, "Rollout", *CELLS)
    job.wait_for("groups are ready for four steps", lambda: job.number("SELECT COUNT(*) FROM groups WHERE state IN ('Ready', 'Assigned')") >= 8, 400)


def operator_pods(job: ClusterJob) -> list[dict[str, Any]]:
    return list(job.cluster.get("pods", f"--namespace={NAMESPACE}", f"--selector=app.kubernetes.io/instance={RELEASE}")["items"])


def epochs_written(job: ClusterJob) -> dict[str, int]:
    return {cell["metadata"]["name"]: cell["spec"].get("epoch", 0) for cell in job.get("gpucells")["items"]}


def epochs_granted(job: ClusterJob) -> dict[str, int]:
    return {f"tiny-{row['cell']}": row["epoch"] for row in job.query("SELECT cell, epoch FROM roles")}


def restart_etcd(job: ClusterJob) -> None:
    job.cluster.restart_etcd()
    job.note("etcd restarted")
    goes_on(job)


def stop_and_start_a_node(job: ClusterJob) -> str:
    """The one with the satellite, and whatever else is there."""
    satellite = job.pods("cell")["tiny-cell-1-0"]
    node = next(i for i, node in enumerate(job.cluster.nodes) if node.name == satellite["spec"]["nodeName"])
    there = [name for name, pod in job.pods("conductor", "gateway", "cell").items() if pod["spec"].get("nodeName") == f"n{node}"]
    job.cluster.stop_node(node)
    job.note(f"n{node} is off, with {there}")
    for pod in there:
        job.wait_for(f"{pod} is on the other node", partial(on_another, job, pod, f"n{node}"), 240)
    job.note("its pods are on the other node")
    goes_on(job)
    job.cluster.start_node(node)
    job.note(f"n{node} is on again")
    return f"n{node}"


def on_another(job: ClusterJob, pod: str, node: str) -> bool:
    found = job.pods().get(pod)
    return found is not None and found["spec"].get("nodeName") not in (None, node) and ready(found)


def goes_on(job: ClusterJob, steps: int = 1) -> None:
    step = job.number("SELECT committed_steps FROM job")
    job.wait_for(f"{steps} more steps", lambda: job.number("SELECT committed_steps FROM job") >= step + steps, 300)


def report(job: ClusterJob, folder: Path) -> None:
    """As a user gets it: through the API server, past the policies."""
    words = ["timeline", job.name, f"--namespace={job.namespace}", f"--kubeconfig={job.cluster.kubeconfig}", f"--out={folder}"]
    assert main(words) == 0, job.story()
    job.note(f"the report has {sum(1 for _ in folder.iterdir())} files")


def finish(job: ClusterJob) -> int:
    """Soon: the number of steps may change while the job runs. Everything that was dispatched is still trained, and a burst more."""
    groups_per_step = int(manifest()["spec"]["schedule"]["groupsPerStep"])
    steps = job.number("SELECT COUNT(*) FROM groups") // groups_per_step + 2
    patch(job, {"spec": {"schedule": {"steps": steps}}})
    job.wait_for_phase("Succeeded")
    job.note("succeeded")
    job.wait_for("no pod is left", lambda: not job.pods(), 90)
    return steps


def patch(job: ClusterJob, change: dict[str, object]) -> None:
    job.kubectl("patch", "rljob", job.name, "--type=merge", f"--patch={json.dumps(change)}")


def pin(job: ClusterJob, role: str | None, *cells: str) -> None:
    for cell in cells:
        job.kubectl("patch", "gpucell", f"tiny-{cell}", "--type=merge", f"--patch={json.dumps({'spec': {'pin': role}})}")
