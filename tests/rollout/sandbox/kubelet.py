"""A kubelet for one pod: its containers run as processes in jails that show what the pod's manifest says, one after the other, as on a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tidemill_rollout.sandbox import bubblewrap, mounts
from tidemill_rollout.sandbox.process import environment_folders

ROOT = Path(__file__).parents[3]

Pod = dict[str, Any]
Report = Callable[[dict[str, Any]], Awaitable[None]]


class RunningPod:
    """`report` is told every status. `stop` ends it as a deletion does."""

    def __init__(self, pod: Pod, folder: Path, report: Report) -> None:
        self._pod = pod
        self._folder = folder
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        for volume in pod["spec"]["volumes"]:
            (folder / volume["name"]).mkdir(parents=True)

    async def run(self) -> None:
        spec = self._pod["spec"]
        for container in spec["initContainers"]:
            await self._report({"phase": "Pending", "initContainerStatuses": [{"name": container["name"], "state": {"running": {}}}]})
            ended = await self._run(container)
            if ended["exitCode"]:
                await self._report({"phase": "Failed", "initContainerStatuses": [{"name": container["name"], "state": {"terminated": ended}}]})
                return
        container = spec["containers"][0]
        await self._report({"phase": "Running", "containerStatuses": [{"name": container["name"], "state": {"running": {}}}]})
        ended = await self._run(container)
        phase = "Failed" if ended["exitCode"] else "Succeeded"
        await self._report({"phase": phase, "containerStatuses": [{"name": container["name"], "state": {"terminated": ended}}]})

    async def stop(self, grace_seconds: float = 2.0) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def _run(self, container: dict[str, Any]) -> dict[str, Any]:
        self._process = await asyncio.create_subprocess_exec(
            *jail(container, self._folder), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
        )
        try:
            output, _ = await self._process.communicate()
        except asyncio.CancelledError:
            await self.stop(0.0)
            raise
        code = self._process.returncode or 0
        (self._folder / f"{container['name']}.log").write_bytes(output)
        return {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed", "message": output[-500:].decode()}


def jail(container: dict[str, Any], folder: Path) -> list[str]:
    """The image is this machine's programs, and for the product's image our own."""
    program = bubblewrap.programs()[0]
    words = [program, "--unshare-all", "--share-net", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--as-pid-1", "--die-with-parent"]
    for mount in mounts.system():
        words += ["--symlink" if mount.kind is mounts.Kind.LINK else "--ro-bind", mount.source, mount.target]
    words += ["--proc", "/proc", "--dev", "/dev"]
    path = "/usr/local/bin:/usr/bin:/bin"
    for mounted in sorted(container["volumeMounts"], key=lambda mount: str(mount["mountPath"])):
        kind = "--ro-bind" if mounted.get("readOnly") else "--bind"
        words += [kind, str(folder / mounted["name"]), mounted["mountPath"]]
    if container["image"] == "product":
        shown = (*environment_folders(), ROOT)
        words += [word for place in mounts.outermost(shown) for word in ("--ro-bind", str(place), str(place))]
        path = f"{Path(sys.prefix) / 'bin'}:{path}"
    words += ["--remount-ro", "/", "--clearenv", "--setenv", "PATH", path]
    for variable in container["env"]:
        words += ["--setenv", variable["name"], variable["value"]]
    return [*words, "--chdir", container["workingDir"], "--", *container["command"]]
