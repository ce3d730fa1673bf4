"""The structured logs of a job's pods."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemill.api.model import GROUP
from tidemill.cluster.api import PODS, Cluster
from tidemill.cluster.finding import selecting
from tidemill.cluster.trouble import NotThere, Unanswered
from tidemill.telemetry.trail import Line, lines

CONFINED = ("sandbox", "evaluator")
"""Components whose pods run what somebody else wrote: what they print is none of ours."""


async def logs_of(cluster: Cluster, job: str) -> tuple[list[Sequence[Line]], list[str]]:
    """Of each pod that keeps one, what the node still has of it; and of which pods there is none, and why. Raises `ClusterTrouble`."""
    pods, _ = await cluster.list(PODS, selector=selecting(job))
    known = {str(pod["metadata"]["name"]): str(pod["metadata"]["labels"].get(f"{GROUP}/component", "")) for pod in pods}
    texts = await asyncio.gather(*(_log(cluster, pod, component) for pod, component in known.items() if component not in CONFINED))
    return [list(lines(text.splitlines())) for text, _ in texts if text], [why for _, why in texts if why]


async def _log(cluster: Cluster, pod: str, component: str) -> tuple[str, str]:
    """A container is called as the component of its pod; beside it may stand a user's sidecars."""
    try:
        return await cluster.log(pod, component), ""
    except (NotThere, Unanswered) as trouble:  # it has just ended, or has not started
        return "", str(trouble)
