"""Why something on a cluster did not happen, in words that say what to do. Pure: from what an API server answered."""

from __future__ import annotations

import json
import re
from typing import Any

from tidemill.api.model import GROUP


class ClusterTrouble(Exception):
    """What was asked for did not happen. The message says what, where, and what to do."""


class NotThere(ClusterTrouble):
    """The object does not exist."""


class Outdated(ClusterTrouble):
    """410: what a watch was to begin with is no longer kept; list again."""


class Unanswered(ClusterTrouble):
    """No answer, 429 or 5xx: the same later may succeed."""


def refusal(status: int, body: bytes, right: str, namespace: str) -> ClusterTrouble:
    """`right` is what was asked, as `patch gpucells.tidemill.dev`."""
    told = _status_of(body)
    message = str(told.get("message") or body[:300].decode(errors="replace").strip() or f"status {status}")
    where = f"in namespace {namespace}" if namespace else "in the cluster"
    match status:
        case 401:
            return ClusterTrouble(f"the cluster does not know who you are ({message}); log in again, or give another --context")
        case 403:
            return ClusterTrouble(f"you lack a right: {right} {where}{_who(message)}; {_role_with(right)}")
        case 404 if told.get("reason") == "NotFound" and (told.get("details") or {}).get("name"):
            return NotThere(f"{right}: {message} {where}")
        case 404 if GROUP in right:
            return ClusterTrouble(
                f"this cluster does not know {right.split()[-1]}: install Tidemill with helm, or its definitions with "
                "`tidemill crds` and `kubectl apply --server-side -f crds/`; or give another --context"
            )
        case 400 if "pods/log" in right:  # a container that has not started
            return Unanswered(f"{right} {where}: {message}")
        case 410:
            return Outdated(message)
        case 429 | 500 | 502 | 503 | 504:
            return Unanswered(f"{right} {where}: the cluster answers with status {status} ({message}); try again")
        case _:
            return ClusterTrouble(f"{right} {where}: {message}")


def _status_of(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _who(message: str) -> str:
    """`User "x" cannot ...` is how the API server names who was refused."""
    found = re.search(r'User "([^"]+)" cannot', message)
    return f" (the cluster knows you as {found[1]})" if found else ""


def _role_with(right: str) -> str:
    verb, resource = right.split()[:2]
    if resource in ("pods/portforward", "serviceaccounts/token") or verb not in ("get", "list", "watch"):
        return "the role edit has it, ask for it"
    return "the role view has it, ask for it"
