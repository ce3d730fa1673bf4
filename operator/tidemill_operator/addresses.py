"""The addresses of a job's Services. Pods carry them in their arguments, so a Service that is made again must get the one it had."""

from __future__ import annotations

import json

from tidemill_operator.names import Manifest
from tidemill_operator.observed import Observed

TAKEN = "provided IP is already allocated"
"""What the API server says when another Service has the address by now."""


def addresses(observed: Observed) -> dict[str, str]:
    """By the Service's name: of those that are there, and as the job's ConfigMap remembers them of those that are not."""
    remembered = observed.thing("ConfigMap", observed.job.name)
    there = {ref.name: thing.cluster_ip for ref, thing in observed.things.items() if ref.kind == "Service" and thing.cluster_ip}
    return {**(remembered.addresses if remembered else {}), **there}


def written(known: dict[str, str]) -> str:
    return json.dumps(known, sort_keys=True)


def read(text: str) -> dict[str, str]:
    """What somebody has spoilt by hand counts as nothing."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(name): str(address) for name, address in found.items()} if isinstance(found, dict) else {}


def at_its_address(manifest: Manifest, known: dict[str, str]) -> Manifest:
    """A Service that is to be made, where it was before; anything else as it is."""
    address = known.get(manifest["metadata"]["name"], "") if manifest["kind"] == "Service" else ""
    return {**manifest, "spec": {**manifest["spec"], "clusterIP": address}} if address else manifest


def remedy(job: str, trouble: str) -> str:
    if TAKEN not in trouble:
        return ""
    return (
        "; the job's pods know the Service by this address: delete the Service that has it now, or suspend the job, delete its ConfigMap "
        f"{job} and resume it, which starts new pods with new addresses"
    )
