"""What a sandbox pod's state says: whether it goes on, and if not, who is to blame. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill_rollout.sandbox.enter import SURROUNDINGS_FAILED
from tidemill_rollout.sandbox.manifest import START_SECONDS

Pod = dict[str, Any]

PULL_SECONDS = 60.0
"""An image whose pull fails is tried again for this long: registries hiccup."""

_HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
_NOT_BEGUN = frozenset({"StartError", "ContainerCannotRun"})
_OWN_DISK = ("ephemeral local storage usage", "local ephemeral storage", "Usage of EmptyDir")


@dataclass(frozen=True, slots=True)
class Over:
    """The pod brings nothing (more). One of the two is said."""

    broken: str = ""  # the infrastructure's doing
    stopped: str = ""  # a limit that the work broke
    unstarted: bool = False  # broken before anything of the task ran


def over(pod: Pod, age_seconds: float) -> Over | None:
    """None: it runs, or may yet."""
    status = pod.get("status") or {}
    name = pod["metadata"]["name"]
    if status.get("phase") == "Succeeded":
        return Over(broken=f"pod {name} ended, but what it brought did not arrive")
    if status.get("phase") == "Failed":
        return _failed(name, status)
    if "deletionTimestamp" in pod["metadata"]:
        return Over(broken=f"pod {name} was deleted by somebody else{_condition(status, 'DisruptionTarget')}")
    return _not_started(name, status, age_seconds)


def started(pod: Pod) -> bool:
    """Its main container has begun."""
    return any("running" in s["state"] or "terminated" in s["state"] for s in _states(pod.get("status") or {}, "containerStatuses"))


def _failed(name: str, status: dict[str, Any]) -> Over:
    if status.get("reason") == "Evicted":
        message = status.get("message", "")
        if any(sign in message for sign in _OWN_DISK):
            return Over(stopped=f"disk: {message}")
        return Over(broken=f"pod {name} was evicted: {message}")
    if status.get("reason"):
        return Over(broken=f"pod {name} failed: {status['reason']}: {status.get('message', '')}{_condition(status, 'DisruptionTarget')}")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for state in _states(status, kind):
            ended = state["state"].get("terminated") or {}
            if ended.get("exitCode", 0) == 0:
                continue
            if ended.get("reason") == "OOMKilled" and kind == "containerStatuses":
                return Over(stopped="memory: the kernel ended the whole sandbox at its limit")
            message = (ended.get("message") or "").strip()[-500:]
            said = f"pod {name}: container {state['name']} ended with {ended['exitCode']} ({ended.get('reason', '')}): {message}"
            unstarted = ended.get("reason") in _NOT_BEGUN if kind == "containerStatuses" else ended["exitCode"] != SURROUNDINGS_FAILED
            return Over(broken=said, unstarted=unstarted)
    return Over(broken=f"pod {name} failed{_condition(status, 'DisruptionTarget')}")


def _not_started(name: str, status: dict[str, Any], age_seconds: float) -> Over | None:
    waiting = ""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for state in _states(status, kind):
            reason = (state["state"].get("waiting") or {}).get("reason", "")
            said = f"container {state['name']}: {reason}: {(state['state'].get('waiting') or {}).get('message', '')[:500]}"
            if reason in _HOPELESS or (reason in _PULL and age_seconds > PULL_SECONDS):
                return Over(broken=f"pod {name} cannot start: {said}", unstarted=True)
            waiting = waiting or (said if reason and reason != "PodInitializing" else "")
    if age_seconds > START_SECONDS and not started({"status": status}):
        why = waiting or _condition(status, "PodScheduled", "False").lstrip(": ") or "no reason is known"
        return Over(broken=f"pod {name} has not started within {START_SECONDS:g} s: {why}", unstarted=True)
    return None


def _states(status: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [state for state in status.get(kind) or () if state.get("state")]


def _condition(status: dict[str, Any], kind: str, value: str = "True") -> str:
    for condition in status.get("conditions") or ():
        if condition["type"] == kind and condition["status"] == value:
            return f": {condition.get('reason', '')}: {condition.get('message', '')}"
    return ""
