"""A job on the test cluster, seen from outside: its objects at the API server, its stores in the folders of its volumes."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.access import KubectlFailed
from tests.cluster.archives import ROOT, host_template
from tests.cluster.cluster import Cluster
from tests.end_to_end.running import query
from tidemill.telemetry.events import AnyEvent, read_events
from tidemill_operator.template import merged

FILE = Path(__file__).parent / "rljob.yaml"
TASKS = ROOT / "examples" / "tiny" / "tasks"
POLL_SECONDS = 0.1


def manifest(**schedule: Any) -> dict[str, Any]:
    """The job of `rljob.yaml`, with cells that run this machine's Python and tasks from this repository."""
    job: dict[str, Any] = yaml.safe_load(FILE.read_text())
    spec = job["spec"]
    spec["schedule"] |= schedule
    cells = spec["cells"]
    host = host_template("cell", init_containers=("model",))
    cells["template"] = merged({"metadata": {}, **host}, cells["template"], "cells.template")
    del cells["template"]["metadata"]
    spec["conductor"] = {"template": _with_tasks()}
    return job


def _with_tasks() -> dict[str, Any]:
    mount = {"name": "tasks", "mountPath": "/tasks", "readOnly": True}
    volume = {"name": "tasks", "hostPath": {"path": str(TASKS), "type": "Directory"}}
    return {"spec": {"containers": [{"name": "conductor", "volumeMounts": [mount]}], "volumes": [volume]}}


@dataclass
class ClusterJob:
    cluster: Cluster
    namespace: str
    name: str
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """What has come about, for who watches the tests and for the message of one that fails."""
        line = f"{time.monotonic() - self.began:5.0f} s, {self.progress}: {text}"
        self.notes.append(line)
        print(line, flush=True)

    @property
    def progress(self) -> str:
        rows = self.query("SELECT committed_steps FROM job")
        return f"step {rows[0][0] if rows else 0}"

    def submit(self, job: dict[str, Any]) -> None:
        self.kubectl("apply", "--filename=-", input=json.dumps(job))

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, input=input)

    def get(self, *arguments: str) -> Any:
        return self.cluster.get(*arguments, f"--namespace={self.namespace}")

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("rljob", self.name).get("status", {})
        return found

    def pods(self, *components: str) -> dict[str, dict[str, Any]]:
        """By name; of all components unless some are named."""
        chosen = f"tidemill.dev/job={self.name}" + (f",tidemill.dev/component in ({','.join(components)})" if components else "")
        return {pod["metadata"]["name"]: pod for pod in self.get("pods", f"--selector={chosen}")["items"]}

    def uid(self, pod: str) -> str:
        """Empty while there is none of this name."""
        return str(self.pods().get(pod, {"metadata": {"uid": ""}})["metadata"]["uid"])

    def volume(self, claim: str) -> Path | None:
        """The folder of a claim; it stays when the claim is gone."""
        folders = sorted((self.cluster.control_plane.folder.path / "volumes" / self.namespace / claim).glob("*"), key=lambda f: f.stat().st_mtime)
        return folders[-1] if folders else None

    @property
    def work(self) -> Path | None:
        """The conductor's."""
        return self.volume(f"work-{self.name}-conductor-0")

    def query(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        return query(self.work / "conductor.db", statement, *values) if self.work else []

    def number(self, statement: str, *values: Any) -> int:
        rows = self.query(statement, *values)
        return int(rows[0][0] or 0) if rows else 0

    def events(self) -> list[AnyEvent]:
        file = self.work / "metrics.jsonl" if self.work else None
        return list(read_events(file)) if file and file.exists() else []

    def wait_for[T](self, what: str, look: Callable[[], T], seconds: float = 300.0) -> T:
        """The first true answer of `look`; when there is none in time, the test fails and tells everything that may explain it."""
        deadline = time.monotonic() + seconds
        while not (found := look()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.story()}")
            time.sleep(POLL_SECONDS)
        return found

    def wait_for_phase(self, phase: str, seconds: float = 300.0) -> None:
        def look() -> bool:
            now = self.status.get("phase", "")
            assert now == phase or now not in ("Succeeded", "Failed", "Invalid"), f"the job is {now}\n{self.story()}"
            return bool(now == phase)

        self.wait_for(f"the job is {phase}", look, seconds)

    def story(self) -> str:
        try:
            return self._story()
        except KubectlFailed as failure:  # the API server is off, or away
            return "\n".join(["--- notes", *self.notes, f"--- no more: {failure}"])

    def _story(self) -> str:
        lines = ["--- notes", *self.notes, "--- status", json.dumps({k: v for k, v in self.status.items() if k != "flips"}, indent=1)]
        for name, pod in self.pods().items():
            states = {c["name"]: c["state"] for c in pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])}
            lines.append(f"--- pod {name} on {pod['spec'].get('nodeName')}: {pod['status'].get('phase')} {json.dumps(states)}")
            if pod["metadata"]["labels"].get("tidemill.dev/component") not in ("sandbox", "evaluator"):
                lines.append(self._logs(name))
        lines += ["--- events", self.kubectl("get", "events", "--sort-by=.lastTimestamp")[-4000:]]
        return "\n".join(lines)

    def _logs(self, pod: str) -> str:
        try:
            return self.kubectl("logs", pod, "--all-containers", "--tail=25")
        except KubectlFailed as failure:
            return str(failure)
