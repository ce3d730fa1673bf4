"""The operator as a real process, and what tests ask of the API server around it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client import ApiClient, CoreV1Api, V1Binding, V1ObjectMeta, V1ObjectReference

from tests.cluster.api_server import ApiServer
from tests.cluster.operator_stand_ins import SECRET
from tests.helm.chart import CHART, helm
from tidemill.local.ports import free_ports
from tidemill_operator.kube import Gone, Kube, KubeError
from tidemill_operator.resources import RESOURCES

PATIENCE_SECONDS = 40.0


@dataclass
class Operator:
    """`stop` as the kubelet would, `kill` as the kernel might."""

    process: asyncio.subprocess.Process
    log: Path
    health_port: int
    metrics_port: int

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), 15.0)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@dataclass
class Cluster:
    """One namespace of the API server, served by operators that the test starts."""

    server: ApiServer
    namespace: str
    folder: Path
    client: ApiClient
    operators: list[Operator] = field(default_factory=list)
    node: str = ""
    unplaced: set[str] = field(default_factory=set)  # pods that the scheduler finds no node for
    places: int = 10_000  # for cells' pods; those of several jobs get them in turn

    @property
    def kube(self) -> Kube:
        return Kube(self.client)

    @property
    def account(self) -> str:
        """Also the name of the lease, as in the chart."""
        return f"{self.namespace}-operator"

    def rights(self, *others: str) -> str:
        """The operator's account and exactly the rights that the chart gives it."""
        values = {"namespaces": [self.namespace, *others]}
        shown = ("--show-only=templates/rbac.yaml", "--show-only=templates/serviceaccount.yaml")
        return helm("template", self.namespace, str(CHART), f"--namespace={self.namespace}", *shown, values=values)

    async def start(self, url: str = "", **config: Any) -> Operator:
        number = len(self.operators)
        health, metrics = free_ports(2)
        document = {
            "images": {"conductor": "conductor:test", "cell": "cell:test", "sandbox": "sandbox:test"},
            "imagePullPolicy": "Never",
            "namespaces": [self.namespace],
            "operatorNamespace": self.namespace,
            "operatorServiceAccount": self.account,
            "lease": {"name": self.account, "durationSeconds": 6, "renewSeconds": 4, "retrySeconds": 0.5},
            "healthPort": health,
            "metricsPort": metrics,
            "development": True,
            **config,
        }
        file = self.folder / f"operator-{number}.yaml"
        file.write_text(yaml.safe_dump(document))
        kubeconfig = await asyncio.to_thread(self.server.kubeconfig_for, self.account, self.namespace, url)
        log = self.folder / f"operator-{number}.log"
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "TIDEMILL_TOKEN": SECRET}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tidemill_operator", "--config", str(file), "--host", "127.0.0.1", stdout=output, stderr=output, env=environment
            )
        operator = Operator(process, log, health, metrics)
        self.operators.append(operator)
        return operator

    async def get(self, kind: str, name: str) -> Any:
        """The object; None when it is not there."""
        try:
            return await self.kube.get(kind, self.namespace, name)
        except Gone:
            return None

    async def all(self, kind: str) -> list[Any]:
        return [item async for item in self.kube.list(RESOURCES[kind], (self.namespace,))]

    async def pods(self, component: str = "") -> dict[str, Any]:
        """By name; those of the operator's making, and those that StatefulSets made of its templates."""
        found = await self.all("Pod")
        return {p["metadata"]["name"]: p for p in found if component in ("", p["metadata"]["labels"]["tidemill.dev/component"])}

    async def submit(self, document: dict[str, Any], conductor_url: str = "") -> None:
        meta = {**document["metadata"], "namespace": self.namespace}
        if conductor_url:
            meta["annotations"] = {"tidemill.dev/conductor-url": conductor_url}
        await self.kube.create({**document, "metadata": meta})

    async def edit(self, kind: str, name: str, **spec: Any) -> None:
        await self.kube.merge(kind, self.namespace, name, {"spec": spec})

    async def delete(self, kind: str, name: str) -> None:
        found = await self.get(kind, name)
        await self.kube.delete(kind, self.namespace, name, found["metadata"]["uid"])

    async def set_pod_status(self, name: str, status: dict[str, Any]) -> None:
        await self.kube.merge("Pod", self.namespace, name, {"status": status}, "status")

    async def play_kubelet(self) -> None:
        """Pods get a node and are ready, and those that are being deleted end."""
        while True:
            with suppress(KubeError):
                pods = await self.pods()
                free = self.places - sum(_is_cells(pod) and "nodeName" in pod["spec"] for pod in pods.values())
                for name, pod in sorted(pods.items(), key=lambda item: (item[0].rpartition("-cell-")[2], item[0])):
                    fits = not _is_cells(pod) or free > 0
                    free -= await self._tend(name, pod, fits) and _is_cells(pod)
            await asyncio.sleep(0.2)

    async def _tend(self, name: str, pod: dict[str, Any], fits: bool) -> bool:
        """Whether it has got a node now."""
        if "deletionTimestamp" in pod["metadata"]:
            await self.kube.delete("Pod", self.namespace, name, pod["metadata"]["uid"], force=True)
        elif not fits and not pod["spec"].get("nodeName"):
            await self.set_pod_status(name, _unschedulable())
        elif name not in self.unplaced and not pod["spec"].get("nodeName"):
            binding = V1Binding(metadata=V1ObjectMeta(name=name), target=V1ObjectReference(api_version="v1", kind="Node", name=self.node))
            await CoreV1Api(self.client).create_namespaced_pod_binding_without_preload_content(name, self.namespace, binding)
            await self.set_pod_status(name, running())
            return True
        return False

    async def status(self, job: str = "job") -> dict[str, Any]:
        found = await self.get("RLJob", job)
        return (found or {}).get("status") or {}

    async def phase(self, job: str = "job") -> str:
        return str((await self.status(job)).get("phase", ""))

    async def condition(self, kind: str, job: str = "job") -> dict[str, Any]:
        return next((c for c in (await self.status(job)).get("conditions", ()) if c["type"] == kind), {})

    async def is_ready(self, job: str = "job") -> bool:
        """All its pods are placed and its conductor answers."""
        return (await self.condition("Ready", job)).get("status") == "True"

    async def is_acknowledged(self, cell: str, role: str, epoch: int) -> bool:
        """Granted, written, and done."""
        found = await self.get("GPUCell", f"job-{cell}")
        spec, status = found["spec"], found.get("status") or {}
        return (spec["role"], spec["epoch"], status.get("role"), status.get("epoch")) == (role, epoch, role, epoch)

    async def until[T](self, ask: Callable[[], Awaitable[T]], so: Callable[[T], Any] = bool, seconds: float = PATIENCE_SECONDS) -> T:
        """Asks again and again until the answer is so."""
        deadline = time.monotonic() + seconds
        while True:
            answer = await ask()
            if so(answer):
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"still {answer!r} after {seconds:g} s; the operators' last words:\n{self.last_words()}")
            await asyncio.sleep(0.1)

    async def lease(self) -> Any:
        return await self.get("Lease", self.account)

    def last_words(self) -> str:
        return "\n".join(operator.log.read_text()[-3000:] for operator in self.operators)

    def logs_show_no_defect(self) -> bool:
        return not any("defect of the operator" in operator.log.read_text() for operator in self.operators)


@asynccontextmanager
async def cluster(server: ApiServer, namespace: str, folder: Path, *, others: tuple[str, ...] = ()) -> AsyncIterator[Cluster]:
    async with server.client() as client:
        made = Cluster(server, namespace, folder, client, node=f"node-{namespace}")
        rights = await asyncio.to_thread(made.rights, *others)
        await asyncio.to_thread(server.kubectl, "apply", "--filename=-", input=rights)
        playing = asyncio.create_task(made.play_kubelet())
        try:
            yield made
        finally:
            playing.cancel()
            for operator in made.operators:
                operator.kill()
                await operator.process.wait()
            await asyncio.to_thread(server.kubectl, "delete", "--ignore-not-found", "--wait=false", "--filename=-", input=rights)
    assert made.logs_show_no_defect(), made.last_words()


def job(name: str = "job", cells: int = 2, **spec: Any) -> dict[str, Any]:
    base = {
        "model": {"source": "tiny:qwen3", "maxLength": 2048},
        "cells": {"count": cells, "capacity": 8},
        "schedule": {"groupsPerStep": 2, "rolloutsPerGroup": 2, "steps": 3},
        "sampling": {"maxTokens": 64},
        "tasks": {"source": "path:/tasks"},
    }
    return {"apiVersion": "tidemill.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}, "spec": {**base, **spec}}


def running() -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("PodScheduled", "Ready")],
    }


def _is_cells(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"]["tidemill.dev/component"] == "cell")


def _unschedulable() -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has room"}]}


def is_(wanted: object) -> Callable[[object], bool]:
    return lambda answer: answer == wanted
