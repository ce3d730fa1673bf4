"""What a request asks of the API server, in Kubernetes' words, and the calls of an audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Call:
    """`resource` is `pods`, or `pods/status` for a subresource; empty for a path that is no resource's, e.g. /readyz."""

    verb: str
    resource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""
    status: int = 0
    pod: str = ""  # that the caller's token belongs to
    at: float = 0.0  # unix seconds

    @property
    def writes(self) -> bool:
        return self.verb in WRITES


def parse(method: str, path: str, query: str) -> Call:
    """What a request asks for."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        rest = parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        rest = parts[3:]
    else:
        return Call(method.lower())
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = [*rest, "", ""][:3]
    return Call(_verb(method, name, parse_qs(query)), "/".join(filter(None, (resource, subresource))), namespace, name)


def _verb(method: str, name: str, query: dict[str, list[str]]) -> str:
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    if method != "GET":
        return _VERBS.get(method, method.lower())
    if query.get("watch", ["false"])[0] in ("1", "true"):
        return "watch"
    return "get" if name else "list"


def audited(log: Path, user: str = "", offset: int = 0) -> Iterator[Call]:
    """The calls in an audit log from an offset on, of one user when named (`system:serviceaccount:NAMESPACE:NAME`)."""
    with log.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):  # being written
                return
            entry = json.loads(line)
            caller = entry["user"]["username"]
            if user in ("", caller):
                thing = entry.get("objectRef", {})
                resource = "/".join(filter(None, (thing.get("resource"), thing.get("subresource"))))
                status = entry.get("responseStatus", {}).get("code", 0)
                pod = entry["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name", [""])[0]
                at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
                yield Call(entry["verb"], resource, thing.get("namespace", ""), thing.get("name", ""), caller, status, pod, at)
