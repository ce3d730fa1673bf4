"""Pods at the API server: made, removed, and watched. Nothing here decides anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.config.config_exception import ConfigException

from tidemill.telemetry.logs import Log

Pod = dict[str, Any]

KUBECONFIG_VARIABLE = "TIDEMILL_KUBECONFIG"
"""Environment variable with a kubeconfig file, for a conductor that runs outside the cluster."""

CALL_SECONDS = 15.0
WATCH_SECONDS = 120
"""A watch is asked for this long. One that is silent for longer is dead, whatever its connection says."""

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0

log = Log(__name__)


class ApiError(Exception):
    """The API server answered with an error status."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.retry_after = retry_after

    @property
    def passes(self) -> bool:
        """Whether the same call may succeed later: also with a token that has been renewed, or when a quota has room."""
        return self.status >= 500 or self.status in (401, 429) or (self.status == 403 and "exceeded quota" in str(self))


class ApiAway(Exception):
    """No answer. The call may or may not have had an effect."""


class NoCluster(Exception):
    """This process does not know an API server. The text says what to do."""


async def connect() -> client.ApiClient:
    """As the pod this process runs in, or as a kubeconfig says. Raises `NoCluster`."""
    settings = client.Configuration()
    try:
        if path := os.environ.get(KUBECONFIG_VARIABLE):
            await config.load_kube_config(config_file=path, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except (ConfigException, OSError) as cause:
        raise NoCluster(
            f"no API server: {cause}; sandboxes as pods need a conductor in a pod with its service account's token, or {KUBECONFIG_VARIABLE}"
        ) from cause
    return client.ApiClient(settings)


class Pods:
    """The pods of one namespace that a selector chooses."""

    def __init__(self, api: client.ApiClient, namespace: str, selector: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = selector

    async def close(self) -> None:
        await self._api.close()

    async def create(self, pod: Pod) -> None:
        """Raises `ApiError` (409: there is one of that name) or `ApiAway`."""
        await self._call("POST", self._path, body=pod)

    async def get(self, name: str) -> Pod | None:
        """Raises `ApiError` or `ApiAway`."""
        try:
            found: Pod = await self._call("GET", f"{self._path}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def delete(self, name: str, uid: str = "", grace_seconds: int | None = None) -> None:
        """It may be gone already, or be another one by now. Raises `ApiError` or `ApiAway`."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", f"{self._path}/{name}", body=body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def list(self) -> tuple[dict[str, Pod], str]:
        """By name, and the version of the list. Raises `ApiError` or `ApiAway`."""
        answer = await self._call("GET", self._path, {"labelSelector": self._selector})
        return {pod["metadata"]["name"]: pod for pod in answer["items"]}, answer["metadata"]["resourceVersion"]

    async def changes(self, version: str) -> AsyncIterator[tuple[str, Pod]]:
        """Kind and pod of every change after `version`, until the server ends it. Raises `ApiError` (410: too old) or `ApiAway`."""
        query = {
            "labelSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_SECONDS, sock_read=WATCH_SECONDS + CALL_SECONDS)
        response = await self._ask("GET", self._path, query, None, timeout)
        try:
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
                yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as cause:
            raise ApiAway(f"watch of pods: {cause!r}") from cause
        finally:
            response.close()

    async def _call(self, method: str, path: str, query: dict[str, str] | None = None, body: dict[str, Any] | None = None) -> Any:
        response = await self._ask(method, path, query or {}, body, aiohttp.ClientTimeout(total=CALL_SECONDS))
        try:
            return json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as cause:
            raise ApiAway(f"{method} {path}: {cause!r}") from cause
        finally:
            response.release()

    async def _ask(
        self, method: str, path: str, query: dict[str, str], body: dict[str, Any] | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        try:
            call = await self._api.param_serialize(
                method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            answer = await self._api.call_api(*call, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            if response.status < 400:
                return response
            with contextlib.closing(response):
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise ApiAway(f"{method} {path}: {cause!r}") from cause
        try:
            status = json.loads(raw)
        except ValueError:
            status = {"message": raw[:500].decode(errors="replace")}
        wait = response.headers.get("Retry-After", "")
        raise ApiError(response.status, status.get("reason", ""), status.get("message", ""), float(wait) if wait.isdigit() else 0.0)


class Watch:
    """What the pods are, as far as is known: kept by a task of its own, which survives whatever the API server does."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._known: dict[str, Pod] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self.listed = 0  # times that the whole list was read

    def get(self, name: str) -> Pod | None:
        return self._known.get(name)

    async def change(self, name: str, seconds: float) -> None:
        """Return when this pod has changed, at the latest after so long."""
        event = self._waiting.setdefault(name, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)

    async def keep(self) -> None:
        """For ever."""
        pause = FIRST_PAUSE_SECONDS
        version = ""
        while True:
            try:
                if not version:
                    self._known, version = await self._pods.list()
                    self.listed += 1
                    self._tell(tuple(self._waiting))
                async for kind, pod in self._pods.changes(version):
                    version = pod["metadata"]["resourceVersion"]
                    pause = FIRST_PAUSE_SECONDS
                    self._note(kind, pod)
                continue
            except ApiError as error:
                if error.status < 500 and error.status != 429:
                    version = ""  # 410: what we know is too old to go on from
                    if error.status != 410:
                        log.error("pods cannot be watched", reason=str(error))
                wait = max(pause, error.retry_after) if error.status != 410 else FIRST_PAUSE_SECONDS
            except ApiAway as trouble:
                log.warning("the API server is away, sandboxes go on", reason=str(trouble))
                wait = pause
            await asyncio.sleep(min(wait, LONGEST_PAUSE_SECONDS))
            pause *= 2

    def _note(self, kind: str, pod: Pod) -> None:
        name = pod["metadata"].get("name", "")
        if kind == "DELETED":
            self._known.pop(name, None)
        elif kind in ("ADDED", "MODIFIED"):
            self._known[name] = pod
        self._tell((name,))

    def _tell(self, names: Iterable[str]) -> None:
        for name in names:
            if event := self._waiting.pop(name, None):
                event.set()
