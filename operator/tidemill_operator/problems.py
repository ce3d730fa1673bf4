"""What is wrong with a pod, in words that say which pod, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemill_operator.names import CONFINED
from tidemill_operator.observed import Container, Pod

REMEDIES = {
    "ImagePullBackOff": "check the image's name in the operator's configuration or the job's template, and imagePullSecrets",
    "ErrImagePull": "check the image's name in the operator's configuration or the job's template, and imagePullSecrets",
    "ErrImageNeverPull": "load the image onto the node, or set imagePullPolicy to IfNotPresent",
    "InvalidImageName": "correct the image's name",
    "CreateContainerConfigError": "a Secret or ConfigMap that the template names is missing, or the image runs as root: see the message",
    "CreateContainerError": "the node cannot start the container: see the message",
    "RunContainerError": "the node cannot start the container: see the message",
    "CrashLoopBackOff": "read the container's last lines with kubectl logs --previous",
    "OOMKilled": "raise spec.cells.resources.memory, or the memory of this container in the template",
    "Unschedulable": "free or add nodes, or lower cells.count, gpusPerNode or resources",
    "Evicted": "the node ran out of memory or disk; the pod is made again",
    "ContainerStatusUnknown": "the node was away; the pod is made again when it does not come back",
}
_WAITING: tuple[str, ...] = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
)
_WAITING += ("RunContainerError", "CrashLoopBackOff")


@dataclass(frozen=True, slots=True)
class Problem:
    pod: str
    reason: str
    detail: str

    @property
    def message(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"pod {self.pod}: {self.reason}{detail}; {REMEDIES.get(self.reason, 'see kubectl describe pod')}"


def problems(pods: Iterable[Pod]) -> tuple[Problem, ...]:
    """At most one for each pod, in the order of their names."""
    found = ((pod, next(_of(pod), None)) for pod in sorted(pods, key=lambda p: p.name) if not pod.deleting)
    return tuple(problem for _, problem in found if problem)


def _of(pod: Pod) -> Iterator[Problem]:
    if pod.unschedulable:
        yield Problem(pod.name, "Unschedulable", pod.unschedulable)
    confined = pod.component in CONFINED  # how these end is the conductor's business
    for container in pod.containers:
        reason = (container.waiting if container.waiting in _WAITING else "") if confined else _reason(container)
        if reason:
            yield Problem(pod.name, reason, f"container {container.name}{': ' if container.message else ''}{container.message[:300]}")
    if pod.phase == "Failed" and not confined:
        yield Problem(pod.name, "Evicted", pod.disrupted or pod.unready_reason)


def _reason(container: Container) -> str:
    if container.last_exit == "OOMKilled" and not container.ready:
        return "OOMKilled"  # says more than the CrashLoopBackOff that follows it
    if container.waiting in _WAITING:
        return container.waiting
    return "ContainerStatusUnknown" if container.last_exit == "ContainerStatusUnknown" and not container.ready else ""
