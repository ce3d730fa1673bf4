"""The API server, as few verbs as the operator needs: plain objects in and out, every answer counted, errors by name."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, ApiException, Configuration

from tidemill_operator.metrics import API_CALLS
from tidemill_operator.names import MANAGER, SELECTOR, Manifest
from tidemill_operator.resources import RESOURCES, Resource

REQUEST_SECONDS = 30.0
PAGE = 500
_MISSHAPEN = "failed to create typed patch object"
"""The server answers 500 to an object of the wrong shape when it is applied: no fault of its own, and none that passes."""


class KubeError(Exception):
    """The API server did not do what was asked. `status` 0: there was no answer."""

    def __init__(self, status: int, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


class Gone(KubeError):
    """404: it is not there."""


class Conflict(KubeError):
    """409: it is another one by now, or somebody was faster."""


class Unavailable(KubeError):
    """429, 5xx or no answer: the same later may succeed."""


class Kube:
    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        return await self._call("GET", RESOURCES[kind], namespace, name)

    async def list(self, resource: Resource, namespaces: tuple[str, ...] = ()) -> AsyncIterator[Manifest]:
        """Everything of the kind that is ours. kind and apiVersion, which lists leave out, are filled in."""
        for namespace in namespaces if namespaces and resource.namespaced else ("",):
            query = {"limit": str(PAGE)} | ({"labelSelector": SELECTOR} if resource.ours else {})
            while True:
                page = await self._call("GET", resource, namespace, query=query)
                for item in page["items"]:
                    yield {"apiVersion": page["apiVersion"], "kind": resource.kind, **item}
                if not page["metadata"].get("continue"):
                    break
                query["continue"] = page["metadata"]["continue"]

    async def apply(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Server-side apply. Fields that somebody else set and we also want become ours: the job's objects are the operator's."""
        meta = manifest["metadata"]
        query = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        kind = RESOURCES[manifest["kind"]]
        return await self._call("PATCH", kind, meta["namespace"], meta["name"], query=query, body=manifest, content="application/apply-patch+yaml")

    async def create(self, manifest: Manifest) -> Manifest:
        return await self._call(
            "POST", RESOURCES[manifest["kind"]], manifest["metadata"]["namespace"], query={"fieldManager": MANAGER}, body=manifest
        )

    async def merge(self, kind: str, namespace: str, name: str, patch: Manifest, subresource: str = "") -> Manifest:
        return await self._call(
            "PATCH",
            RESOURCES[kind],
            namespace,
            name,
            subresource,
            query={"fieldManager": MANAGER},
            body=patch,
            content="application/merge-patch+json",
        )

    async def replace(self, manifest: Manifest) -> Manifest:
        """Refused (Conflict) when the object's resourceVersion is no longer the one in `manifest`."""
        meta = manifest["metadata"]
        return await self._call("PUT", RESOURCES[manifest["kind"]], meta["namespace"], meta["name"], query={"fieldManager": MANAGER}, body=manifest)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if force:
            options["gracePeriodSeconds"] = 0
        await self._call("DELETE", RESOURCES[kind], namespace, name, body=options)

    async def raw(self, path: str) -> Manifest:
        """A document outside of the resources, e.g. /openid/v1/jwks."""
        return await self._request("GET", path, None, "", path)

    async def has(self, resource: Resource) -> bool:
        """Whether the cluster knows such objects."""
        try:
            known = await self.raw(f"/apis/{resource.group}/{resource.version}")
        except Gone:
            return False
        return any(entry["name"] == resource.plural for entry in known["resources"])

    async def _call(
        self,
        verb: str,
        resource: Resource,
        namespace: str = "",
        name: str = "",
        subresource: str = "",
        *,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
    ) -> Manifest:
        path = resource.path(namespace if resource.namespaced else "", name, subresource)
        if query:
            path += "?" + urllib.parse.urlencode(query)
        return await self._request(verb, path, body, content, resource.kind)

    async def _request(self, verb: str, path: str, body: Manifest | None, content: str, kind: str) -> Manifest:
        headers: dict[str, str] = {"Accept": "application/json, */*", **({"Content-Type": content} if body is not None else {})}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, verb, body)
        url = self._client.configuration.host + path
        what = f"{verb} {path.partition('?')[0]}"
        try:
            response = await self._client.rest_client.request(verb, url, headers=headers, body=body, _request_timeout=REQUEST_SECONDS)
            raw: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ApiException) as cause:
            API_CALLS.of(verb, kind, "none").inc()
            raise Unavailable(0, f"{what}: no answer ({type(cause).__name__}: {cause})") from cause
        API_CALLS.of(verb, kind, str(response.status)).inc()
        if response.status >= 400:
            raise error_of(response.status, what, raw, response.headers.get("Retry-After", ""))
        answer: Manifest = json.loads(raw)
        return answer


async def connect() -> ApiClient:
    """As a pod with its service account, else as the kubeconfig says."""
    configuration = Configuration()
    configuration.retries = None  # repeating is the work queue's business
    if os.environ.get("KUBECONFIG") or not os.environ.get("KUBERNETES_SERVICE_HOST"):
        await kubernetes_config.load_kube_config(client_configuration=configuration)
    else:
        kubernetes_config.load_incluster_config(client_configuration=configuration)
    return ApiClient(configuration)


def error_of(status: int, what: str, raw: bytes, retry_after: str) -> KubeError:
    message = f"{what}: status {status}: {_message(raw)}"
    pause = float(retry_after) if retry_after.isdigit() else 0.0
    match status:
        case 404:
            return Gone(status, message)
        case 409:
            return Conflict(status, message)
        case 429:
            return Unavailable(status, message, pause)
        case _ if status < 500 or _MISSHAPEN in message:
            return KubeError(status, message)
        case _:
            return Unavailable(status, message, pause)


def _message(raw: bytes) -> str:
    try:
        answer: Any = json.loads(raw)
        return str(answer["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode(errors="replace")
