"""The API server as a user reaches it: a handful of verbs, plain objects in and out, refusals that say what to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tidemill.api.model import GROUP, VERSION
from tidemill.cluster.trouble import NotThere, Unanswered, refusal

REQUEST_SECONDS = 20.0
SILENCE_SECONDS = 90.0
"""A watch that says nothing for so long is begun anew: the API server is asked to close it before."""

LOG_SECONDS = 120.0
"""A node keeps some 50 MB of a container's."""

WATCH_SECONDS = 60
PAGE = 500

type Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """`plural` of `group`; the core group is empty."""

    plural: str
    group: str = ""
    version: str = "v1"

    @property
    def full(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = (root, f"namespaces/{namespace}" if namespace else "", self.plural, name, subresource)
        return "/".join(part for part in parts if part)


JOBS, CELLS = Kind("rljobs", GROUP, VERSION), Kind("gpucells", GROUP, VERSION)
PODS, CONFIG_MAPS, ACCOUNTS = Kind("pods"), Kind("configmaps"), Kind("serviceaccounts")


class Cluster:
    """A connection, and the namespace that the user means. Calls raise `ClusterTrouble`."""

    def __init__(self, client: Any, session: aiohttp.ClientSession, namespace: str) -> None:
        self.namespace = namespace
        self._client = client
        self._session = session
        configuration = client.configuration
        self._how: dict[str, Any] = {"ssl": client.rest_client.ssl_context}
        if configuration.proxy:
            self._how |= {"proxy": configuration.proxy, "proxy_headers": configuration.proxy_headers}
        if configuration.tls_server_name:
            self._how["server_hostname"] = configuration.tls_server_name

    @property
    def url(self) -> str:
        return str(self._client.configuration.host)

    async def get(self, kind: Kind, name: str) -> Object:
        """Raises `NotThere` too."""
        return await self._call("GET", kind.path(self.namespace, name), f"get {kind.full}")

    async def list(self, kind: Kind, *, selector: dict[str, str] | None = None, namespace: str | None = None) -> tuple[list[Object], str]:
        """The objects, and the version of the list, for `watch`. Namespace "" means all."""
        where = self.namespace if namespace is None else namespace
        found: list[Object] = []
        query = {"limit": str(PAGE), **(selector or {})}
        while True:
            page = await self._call("GET", kind.path(where), f"list {kind.full}", query=query, namespace=where)
            found += page["items"]
            if not page["metadata"].get("continue"):
                return found, str(page["metadata"].get("resourceVersion", ""))
            query["continue"] = page["metadata"]["continue"]

    async def watch(self, kind: Kind, version: str, selector: dict[str, str]) -> AsyncIterator[Object]:
        """What happens after the list of this version, until the server closes the watch. Raises `Outdated` when it no longer knows it."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS), **selector}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=SILENCE_SECONDS)
        right = f"watch {kind.full}"
        async with self._answer("GET", kind.path(self.namespace), right, query, timeout=timeout) as response:
            rest = b""
            async for piece in response.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    if told["type"] == "ERROR":
                        raise refusal(int(told["object"].get("code", 500)), json.dumps(told["object"]).encode(), right, self.namespace)
                    yield told

    async def merge(self, kind: Kind, name: str, patch: Object) -> Object:
        """Raises `NotThere` too."""
        content = "application/merge-patch+json"
        return await self._call(
            "PATCH", kind.path(self.namespace, name), f"patch {kind.full}", query={"fieldManager": "tidemill"}, body=patch, content=content
        )

    async def log(self, pod: str, container: str) -> str:
        """What the container has printed, as far as its node still keeps it. Raises `NotThere`, and `Unanswered` before it has started."""
        path = PODS.path(self.namespace, pod, "log")
        async with self._answer("GET", path, "get pods/log", {"container": container}, timeout=aiohttp.ClientTimeout(total=LOG_SECONDS)) as response:
            return (await response.read()).decode(errors="replace")

    async def token(self, account: str, audience: str, seconds: int) -> str:
        """A token with which the bearer is this service account towards `audience`. Raises `NotThere` too."""
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [audience], "expirationSeconds": seconds}}
        answer = await self._call("POST", ACCOUNTS.path(self.namespace, account, "token"), "create serviceaccounts/token", body=wanted)
        return str(answer["status"]["token"])

    @asynccontextmanager
    async def websocket(self, path: str, protocol: str, right: str, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientWebSocketResponse[bool]]:
        headers = await self._headers("GET", path)
        try:
            async with self._session.ws_connect(
                self.url + path, params=query, headers=headers, protocols=(protocol,), max_msg_size=0, autoping=True, **self._how
            ) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as cause:  # without the answer's body
            if cause.status == 404:
                raise NotThere(f"{right} in namespace {self.namespace}: {path} is not there") from cause
            if cause.status == 400:
                raise Unanswered(f"{right} in namespace {self.namespace}: {path} has no node yet") from cause
            raise refusal(cause.status, b"", right, self.namespace) from cause
        except (aiohttp.ClientConnectionError, TimeoutError) as cause:
            raise self._silent(right, cause) from cause

    async def _call(
        self,
        verb: str,
        path: str,
        right: str,
        *,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
        namespace: str | None = None,
    ) -> Object:
        async with self._answer(verb, path, right, query or {}, body=body, content=content, namespace=namespace) as response:
            answer: Object = json.loads(await response.read())
            return answer

    @asynccontextmanager
    async def _answer(
        self,
        verb: str,
        path: str,
        right: str,
        query: dict[str, str],
        *,
        body: Object | None = None,
        content: str = "application/json",
        namespace: str | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = await self._headers(verb, path)
        data = None
        if body is not None:
            headers["Content-Type"], data = content, json.dumps(body)
        limits = timeout or aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            async with self._session.request(
                verb, self.url + path, params=query, headers=headers, data=data, timeout=limits, **self._how
            ) as response:
                if response.status >= 400:
                    raise refusal(response.status, await response.read(), right, self.namespace if namespace is None else namespace)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise self._silent(right, cause) from cause

    async def _headers(self, verb: str, path: str) -> dict[str, str]:
        headers = {"Accept": "application/json, */*"}  # kubelets answer 406 to a port-forward that asks for JSON alone
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, verb, None)
        return headers

    def _silent(self, right: str, cause: Exception) -> Unanswered:
        reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        return Unanswered(f"{right}: the cluster at {self.url} does not answer ({reason}); is it up, and the right one? Try kubectl cluster-info")
