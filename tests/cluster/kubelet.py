"""A kubelet for the API-server level: binds a namespace's pods to a node, runs them here in jails, tells how they are, lets deleted ones go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from kubernetes.aio.client import ApiClient, ApiException, CoreV1Api

from tests.rollout.sandbox.kubelet import RunningPod

NODE = "node-a"


class Kubelet:
    def __init__(self, client: ApiClient, namespace: str, folder: Path) -> None:
        self.namespace = namespace
        self.runs = True  # containers; else pods are only bound
        self.ends = True  # pods that are deleted; else its node is lost
        self.folders: dict[str, Path] = {}
        self._api = CoreV1Api(client)
        self._client = client
        self._folder = folder
        self._running: dict[str, tuple[RunningPod, asyncio.Task[None]]] = {}

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[Kubelet]:
        task = asyncio.create_task(self._work())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})
            for kubelet, running in self._running.values():
                await kubelet.stop(0.0)
                running.cancel()

    async def pods(self) -> list[dict[str, Any]]:
        answer = await self._api.list_namespaced_pod(self.namespace)
        return [self._client.sanitize_for_serialization(pod) for pod in answer.items]

    async def say(self, name: str, status: dict[str, Any]) -> None:
        for kind in ("initContainerStatuses", "containerStatuses"):
            for container in status.get(kind, ()):
                container |= {"image": "product", "imageID": "", "ready": False, "restartCount": 0}
        with contextlib.suppress(ApiException):  # it is gone
            await self._api.patch_namespaced_pod_status(name, self.namespace, {"status": status})

    async def _work(self) -> None:
        while True:
            for pod in await self.pods():
                await self._attend(pod)
            await asyncio.sleep(0.05)

    async def _attend(self, pod: dict[str, Any]) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if "nodeName" not in pod["spec"]:
            binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
            await self._client.call_api(*await self._call(f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding", binding))
        elif "deletionTimestamp" in pod["metadata"]:
            if not self.ends:
                return
            if uid in self._running:
                kubelet, task = self._running.pop(uid)
                await kubelet.stop()
                task.cancel()
            with contextlib.suppress(ApiException):
                await self._api.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)
        elif self.runs and uid not in self._running and pod["status"].get("phase") == "Pending":
            self.folders[name] = self._folder / uid
            kubelet = RunningPod(pod, self.folders[name], lambda status: self.say(name, status))
            self._running[uid] = kubelet, asyncio.create_task(kubelet.run())

    async def _call(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        return await self._client.param_serialize("POST", path, header_params=headers, body=body, auth_settings=["BearerToken"])
