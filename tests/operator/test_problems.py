from __future__ import annotations

from typing import Any

import pytest

from tidemill_operator.problems import problems
from tidemill_operator.reading import pod_of


def pod(component: str = "cell", **status: Any) -> Any:
    meta = {
        "name": "job-cell-1-0",
        "namespace": "ns",
        "uid": "u",
        "labels": {"tidemill.dev/component": component},
        "creationTimestamp": "2027-01-01T00:00:00Z",
    }
    return pod_of({"kind": "Pod", "metadata": meta, "spec": {}, "status": status})


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"name": "cell", "state": {"waiting": {"reason": reason, "message": message}}}]}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (waiting("ImagePullBackOff", "not found"), "ImagePullBackOff", "imagePullSecrets"),
        (waiting("ErrImageNeverPull"), "ErrImageNeverPull", "load the image"),
        (waiting("CrashLoopBackOff"), "CrashLoopBackOff", "kubectl logs --previous"),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), "CreateContainerConfigError", 'secret "x" not found'),
        (
            {
                "containerStatuses": [
                    {"name": "cell", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"reason": "OOMKilled"}}}
                ]
            },
            "OOMKilled",
            "raise spec.cells.resources.memory",
        ),
        ({"initContainerStatuses": [{"name": "model", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}, "CrashLoopBackOff", "container model"),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]},
            "Unschedulable",
            "0/3 nodes",
        ),
        ({"phase": "Failed"}, "Evicted", "made again"),
    ],
)
def test_a_problem_names_pod_reason_and_remedy(status: dict[str, Any], reason: str, words: str) -> None:
    (problem,) = problems([pod(**status)])
    assert problem.reason == reason
    assert problem.message.startswith(f"pod job-cell-1-0: {reason}")
    assert words in problem.message


@pytest.mark.parametrize(
    "status",
    [
        {},
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        {"phase": "Running", "containerStatuses": [{"name": "cell", "ready": True, "lastState": {"terminated": {"reason": "OOMKilled"}}}]},
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
    ],
)
def test_what_is_on_its_way_or_over_is_no_problem(status: dict[str, Any]) -> None:
    assert problems([pod(**status)]) == ()


def test_of_a_sandbox_only_what_keeps_it_from_starting_is_a_problem_here() -> None:
    (problem,) = problems([pod("sandbox", **waiting("ErrImagePull", "no such image"))])
    assert problem.reason == "ErrImagePull"
    killed = {"containerStatuses": [{"name": "sandbox", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}
    assert problems([pod("sandbox", phase="Failed", **killed), pod("evaluator", phase="Failed")]) == ()
