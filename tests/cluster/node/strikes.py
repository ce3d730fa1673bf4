"""What happens to the job's pods: kill -9 at points that its stores or other pods show, and the wait until another has taken the place.

The victim is stopped first and the point is looked at again: only if it still holds is the victim killed.
"""

from __future__ import annotations

import http.client
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.node.lived import ClusterJob
from tests.cluster.sweeping import cgroups

POLL_SECONDS = 0.005
LOOK_AGAIN_SECONDS = 0.05
"""After the stop: what the victim had already sent reaches the stores."""


@dataclass(frozen=True, slots=True)
class Strike:
    point: str
    pod: str
    at: float  # unix seconds
    facts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.point}: {self.pod} killed; {', '.join(self.facts)}"


def processes_of(cluster: Cluster, uid: str, word: str = "") -> list[int]:
    """Of a pod, those with a word in their command line; they are this machine's."""
    folders = [folder for folder in cgroups(cluster.control_plane.folder.name) if uid and f"pod{uid}" in str(folder)]
    found = {int(line) for folder in folders for line in _read(folder / "cgroup.procs").split()}
    return sorted(pid for pid in found if word in _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " "))


def strike(
    job: ClusterJob,
    point: str,
    pod: str,
    look: Callable[[], tuple[str, ...]],
    *,
    word: str = "",
    told_by_victim: bool = False,
    seconds: float = 400.0,
) -> Strike:
    """Kill the pod's processes (those with `word`, if given) while `look` finds facts that show the point."""
    struck = try_to_strike(job, point, pod, look, word=word, told_by_victim=told_by_victim, seconds=seconds)
    assert struck is not None, f"not within {seconds:.0f} s: {point}\n{job.story()}"
    return struck


def try_to_strike(
    job: ClusterJob, point: str, pod: str, look: Callable[[], tuple[str, ...]], *, word: str = "", told_by_victim: bool = False, seconds: float
) -> Strike | None:
    """None: the point did not come in time."""
    deadline, uid = time.monotonic() + seconds, job.uid(pod)
    while time.monotonic() < deadline:
        if (facts := look()) and (victims := processes_of(job.cluster, uid, word)):
            send(signal.SIGSTOP, victims)
            time.sleep(LOOK_AGAIN_SECONDS)
            if told_by_victim or (facts := look()):
                send(signal.SIGKILL, victims)
                struck = Strike(point, pod, time.time(), facts)
                job.note(str(struck))
                return struck
            send(signal.SIGCONT, victims)
        time.sleep(POLL_SECONDS)
    return None


def remove(job: ClusterJob, pod: str) -> None:
    """Its object, at once; whoever made it has to make another."""
    job.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")


def another(job: ClusterJob, pod: str, uid: str, seconds: float = 400.0) -> None:
    """Wait until there is a pod of this name with another identity, and it is ready."""

    def look() -> bool:
        found = job.pods().get(pod)
        return found is not None and found["metadata"]["uid"] != uid and ready(found)

    job.wait_for(f"another {pod} is ready", look, seconds)
    job.note(f"another {pod} is ready")


def ready(pod: dict[str, Any]) -> bool:
    return any((c["type"], c["status"]) == ("Ready", "True") for c in pod["status"].get("conditions", ()))


def agent(job: ClusterJob, cell: str) -> int:
    """A port of this machine that leads to the agent of a cell's present pod: asking through kubectl would take longer than a point lasts."""
    pod = job.pods("cell")[f"{job.name}-{cell}-0"]
    node = next(i for i, node in enumerate(job.cluster.nodes) if node.name == pod["spec"]["nodeName"])
    return job.cluster.forward(pod["status"]["podIP"], 7002, node)


def live_calls(port: int) -> int:
    """How many calls an agent has in flight; 0 when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, http.client.HTTPException):
        return 0
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("tidemill_cell_live_calls"))


def leases_of(job: ClusterJob, cell: str) -> tuple[str, ...]:
    return tuple(row["lease"] for row in job.query("SELECT lease FROM microsteps WHERE state = 'Leased' AND cell = ?", cell))


def send(number: signal.Signals, processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, OSError):
        return ""
