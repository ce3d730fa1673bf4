"""A job and its cells as they change: from lists and watches, through restarts of the API server and lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.cluster.api import CELLS, JOBS, Cluster, Kind, Object
from tidemill.cluster.finding import selecting
from tidemill.cluster.objects import Cell, Job, cell_of, in_order, job_of
from tidemill.cluster.trouble import NotThere, Outdated, Unanswered

GATHER_SECONDS = 0.2
"""Changes that come together are told together."""

REPEAT_SECONDS = 2.0
"""Told again when nothing changed, for a clock that is drawn, and for readers who skip readings."""

PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    job: Job
    cells: tuple[Cell, ...]
    trouble: str = ""  # why this may be out of date


@dataclass(slots=True)
class _Held:
    """The newest objects of one kind, by name; None before the first list."""

    objects: dict[str, Object] | None = None
    trouble: str = ""


@dataclass(slots=True)
class _State:
    job: _Held = field(default_factory=_Held)
    cells: _Held = field(default_factory=_Held)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


async def follow(cluster: Cluster, name: str, tell: Callable[[Seen], bool]) -> Seen | None:
    """Tell what is seen at every change, until `tell` answers True. Answers the last that was seen; None when the job was deleted.

    Raises:
        ClusterTrouble: a right is lacking, or the like. Silence of the API server is waited out, and told.
    """
    state = _State()
    telling = asyncio.create_task(_tell(state, name, tell))
    watching = (
        asyncio.create_task(_keep(cluster, JOBS, {"fieldSelector": f"metadata.name={name}"}, state.job, state.changed)),
        asyncio.create_task(_keep(cluster, CELLS, selecting(name), state.cells, state.changed)),
    )
    try:
        done, _ = await asyncio.wait((telling, *watching), return_when=asyncio.FIRST_COMPLETED)
        for task in done - {telling}:
            task.result()  # it raises, that is how it ended
        return telling.result()
    finally:
        for each in (telling, *watching):
            each.cancel()
        await asyncio.gather(telling, *watching, return_exceptions=True)


async def _tell(state: _State, name: str, tell: Callable[[Seen], bool]) -> Seen | None:
    while True:
        jobs, cells = state.job.objects, state.cells.objects
        if jobs is not None and name not in jobs:
            return None
        if jobs is not None and cells is not None:
            mine = [cell_of(document) for document in cells.values()]
            seen = Seen(job_of(jobs[name]), in_order(mine), state.job.trouble or state.cells.trouble)
            if tell(seen):
                return seen
        try:
            async with asyncio.timeout(REPEAT_SECONDS):
                await state.changed.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(GATHER_SECONDS)
        state.changed.clear()


async def _keep(cluster: Cluster, kind: Kind, selector: dict[str, str], held: _Held, changed: asyncio.Event) -> None:
    """Keep `held` as the cluster has it."""
    while True:
        try:
            documents, version = await cluster.list(kind, selector=selector)
            held.objects, held.trouble = {document["metadata"]["name"]: document for document in documents}, ""
            changed.set()
            while True:
                version = await _watch(cluster, kind, selector, version, held.objects, changed)
        except Outdated:
            continue
        except Unanswered as trouble:
            if held.objects is None:
                raise
            held.trouble = str(trouble)
            changed.set()
            await asyncio.sleep(PAUSE_SECONDS)


async def _watch(cluster: Cluster, kind: Kind, selector: dict[str, str], version: str, objects: dict[str, Object], changed: asyncio.Event) -> str:
    """Until the server closes the watch. Answers the version to go on from."""
    async for event in cluster.watch(kind, version, selector):
        meta = event["object"]["metadata"]
        version = meta["resourceVersion"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                objects[meta["name"]] = event["object"]
            case "DELETED":
                objects.pop(meta["name"], None)
            case _:
                continue  # a bookmark
        changed.set()
    return version


async def wait_for(cluster: Cluster, name: str, so: Callable[[Seen], bool], seconds: float) -> bool:
    """Whether it became so in time. Raises `NotThere` when the job is deleted meanwhile."""
    try:
        async with asyncio.timeout(seconds):
            if await follow(cluster, name, so) is None:
                raise NotThere(f"rljob {name} was deleted meanwhile")
    except TimeoutError:
        return False
    return True
