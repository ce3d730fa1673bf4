"""Whether a pod goes on, and whose fault it is when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill_rollout.sandbox.ending import PULL_SECONDS, Over, over
from tidemill_rollout.sandbox.manifest import START_SECONDS


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", **metadata}, "status": status}


def container(state: dict[str, Any], kind: str = "containerStatuses", name: str = "sandbox") -> dict[str, Any]:
    return {kind: [{"name": name, "state": state}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"phase": "Pending", **container({"waiting": {"reason": reason, "message": message}}, "initContainerStatuses", "prepare")}


RUNNING = {"phase": "Running", **container({"running": {}})}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}],
}


@pytest.mark.parametrize(
    ("status", "age"),
    [({}, 0), (UNSCHEDULABLE, START_SECONDS - 1), (waiting("ErrImagePull"), PULL_SECONDS - 1), (waiting("PodInitializing"), 10), (RUNNING, 10**6)],
)
def test_a_pod_that_may_yet_bring_something_goes_on(status: dict[str, Any], age: float) -> None:
    assert over(pod(status), age) is None


def failed(**ended: Any) -> dict[str, Any]:
    return {"phase": "Failed", **container({"terminated": ended})}


@pytest.mark.parametrize(
    ("status", "age", "reason"),
    [
        (UNSCHEDULABLE, START_SECONDS + 1, "has not started within 300 s: Unschedulable: 0/3 nodes are available"),
        (waiting("ContainerCreating", "volume"), START_SECONDS + 1, "container prepare: ContainerCreating: volume"),
        ({}, START_SECONDS + 1, "no reason is known"),
        (waiting("ImagePullBackOff", "no such image"), PULL_SECONDS + 1, "cannot start: container prepare: ImagePullBackOff: no such image"),
        (waiting("ErrImageNeverPull"), 0, "ErrImageNeverPull"),
        (waiting("CreateContainerConfigError"), 0, "CreateContainerConfigError"),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, 9, "was evicted: The node was low"),
        ({"phase": "Failed", "reason": "NodeLost"}, 9, "failed: NodeLost"),
        ({"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active"}, 9, "DeadlineExceeded"),
        ({"phase": "Failed"}, 9, "pod p failed"),
        (failed(exitCode=75, reason="Error", message="sandbox: gave up on the gateway"), 9, "ended with 75 (Error): sandbox: gave up"),
        (failed(exitCode=128, reason="StartError", message='exec: "python3": not found'), 9, 'exec: "python3": not found'),
        ({"phase": "Failed", **container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "initContainerStatuses")}, 9, "OOMKilled"),
        ({"phase": "Succeeded"}, 9, "did not arrive"),
    ],
)
def test_the_surroundings_are_to_blame(status: dict[str, Any], age: float, reason: str) -> None:
    found = over(pod(status), age)
    assert found is not None
    assert reason in found.broken
    assert not found.stopped


@pytest.mark.parametrize(
    ("status", "age", "unstarted"),
    [
        (waiting("ErrImageNeverPull"), 0, True),
        (waiting("ImagePullBackOff"), PULL_SECONDS + 1, True),
        (UNSCHEDULABLE, START_SECONDS + 1, True),
        (failed(exitCode=128, reason="StartError", message='exec: "python3": not found'), 9, True),
        (failed(exitCode=75, reason="Error"), 9, False),
        ({"phase": "Failed", **container({"terminated": {"exitCode": 1, "reason": "Error"}}, "initContainerStatuses", "prepare")}, 9, True),
        ({"phase": "Failed", **container({"terminated": {"exitCode": 75, "reason": "Error"}}, "initContainerStatuses", "prepare")}, 9, False),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, 9, False),
        ({"phase": "Succeeded"}, 9, False),
    ],
)
def test_a_pod_that_never_ran_is_told_from_one_that_broke(status: dict[str, Any], age: float, unstarted: bool) -> None:
    found = over(pod(status), age)
    assert found is not None
    assert found.unstarted is unstarted


def test_a_pod_that_somebody_deletes_is_over() -> None:
    disrupted = {**RUNNING, "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "node"}]}
    found = over(pod(disrupted, deletionTimestamp="2026-01-01T00:00:00Z"), 9)
    assert found == Over(broken="pod p was deleted by somebody else: DeletionByTaintManager: node")


@pytest.mark.parametrize(
    ("status", "stopped"),
    [
        (failed(exitCode=137, reason="OOMKilled"), "memory: "),
        (
            {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "app" exceeds the limit "1536Mi". '},
            "disk: Usage of EmptyDir",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. "},
            "disk: ",
        ),
    ],
)
def test_a_limit_that_the_work_broke_is_its_own_doing(status: dict[str, Any], stopped: str) -> None:
    found = over(pod(status), 9)
    assert found is not None
    assert found.stopped.startswith(stopped)
    assert not found.broken
