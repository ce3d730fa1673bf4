"""Which job and which cell a user means."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tidemill.api.model import GROUP
from tidemill.cluster.api import CELLS, JOBS, Cluster
from tidemill.cluster.objects import Cell, Job, cell_of, in_order, job_of
from tidemill.cluster.trouble import ClusterTrouble, NotThere


async def find_job(cluster: Cluster, name: str | None) -> Job:
    """The job of this name; without one the only job of the namespace. Raises `ClusterTrouble`."""
    if name is not None:
        try:
            return job_of(await cluster.get(JOBS, name))
        except NotThere:
            pass
    jobs = [job_of(document) for document in (await cluster.list(JOBS))[0]]
    if name is None and len(jobs) == 1:
        return jobs[0]
    raise NotThere(unclear(name, cluster.namespace, [job.name for job in jobs], await _elsewhere(cluster, name)))


async def cells_of(cluster: Cluster, job: str) -> tuple[Cell, ...]:
    documents, _ = await cluster.list(CELLS, selector=selecting(job))
    return in_order([cell_of(document) for document in documents])


async def find_cell(cluster: Cluster, job: Job, name: str) -> Cell:
    cells = await cells_of(cluster, job.name)
    for cell in cells:
        if name in (cell.name, cell.object_name):
            return cell
    if not cells:
        phase = job.status.phase.value
        raise NotThere(f"rljob {job.name} has no cells (it is {phase}); look with: tidemill status {job.name} -n {job.namespace}")
    raise NotThere(f"rljob {job.name} has no cell {name}; {nearest(name, [cell.name for cell in cells])}")


def selecting(job: str) -> dict[str, str]:
    """The query for everything that belongs to a job."""
    return {"labelSelector": f"{GROUP}/job={job}"}


def unclear(name: str | None, namespace: str, here: Sequence[str], elsewhere: Sequence[str]) -> str:
    """Why no job was found, and what to say instead. `elsewhere` are namespaces that have what was meant."""
    other = f"; namespace {elsewhere[0]} has {'it' if name else 'one'}: -n {elsewhere[0]}" if elsewhere else ""
    if not here:
        what = f"rljob {name} is not in namespace {namespace}, which has no jobs" if name else f"namespace {namespace} has no jobs"
        return what + (other or "; kubectl apply one, or name another namespace with -n")
    if name is None:
        return f"namespace {namespace} has {len(here)} jobs; say which: {', '.join(sorted(here))}"
    return f"rljob {name} is not in namespace {namespace}{other or f'; {nearest(name, here)}'}"


def nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"


async def _elsewhere(cluster: Cluster, name: str | None) -> list[str]:
    """Namespaces that have such a job, for those who may look."""
    try:
        documents, _ = await cluster.list(JOBS, namespace="")
    except ClusterTrouble:
        return []
    names = {document["metadata"]["namespace"] for document in documents if name in (None, document["metadata"]["name"])}
    return sorted(names - {cluster.namespace})
