"""Whether the hosts can hold the job: bytes of one node of a cell, against what the job asks for and what nodes have.

Per parameter and core node (mixed precision, AdamW): master copy and two moments 12 B, published weights in the model's dtype. A CPU cell
also holds gradients and the awake engine in host memory; a GPU cell's engines sleep without their weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tidemill.api.model import amount
from tidemill.api.rljob import RLJob
from tidemill_operator.conditions import Condition, Is
from tidemill_operator.observed import Node

PARAMETERS = "tidemill.dev/model-parameters"
"""Annotation with the number of the model's parameters, e.g. 122e9, for models whose name does not end in it."""

OPTIMIZER_BYTES, GRADIENT_BYTES = 12, 4
PROCESS_BYTES = 1.5e9
"""Interpreter, torch and engine of one node before any weights, as measured with the CPU builds."""

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_IN_NAME = re.compile(r"[-_](\d+(?:\.\d+)?)([bBmM])(?![a-zA-Z0-9])")


def parameters(job: RLJob) -> float | None:
    """From the annotation, else from a name such as Qwen3-8B; None when neither tells."""
    told = job.metadata.annotations.get(PARAMETERS, "")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?([eE][0-9]{1,2})?", told):
        return float(told)
    named = _IN_NAME.search(job.spec.model.source)
    return float(named[1]) * (1e9 if named[2] in "bB" else 1e6) if named else None


def core_node_bytes(job: RLJob, count: float) -> float:
    """Host memory of one node of the core, the role that needs most."""
    weights = _DTYPE_BYTES[job.spec.model.dtype]
    per_parameter = OPTIMIZER_BYTES + weights
    if not job.spec.cells.gpus_per_node:
        per_parameter += GRADIENT_BYTES + weights
    return count * per_parameter / job.spec.cells.nodes_per_cell + PROCESS_BYTES


def host_memory_fits(job: RLJob, nodes: Iterable[Node]) -> Condition:
    """False: nothing is created. Unknown does not hold a job back."""
    asked = amount(job.spec.cells.resources.memory)
    count = parameters(job)
    needed = core_node_bytes(job, count) if count is not None else 0.0
    if needed > asked:
        remedy = (
            f"set spec.cells.resources.memory to {math.ceil(needed / 2**30)}Gi or more, raise cells.nodesPerCell, or correct annotation {PARAMETERS}"
        )
        message = (
            f"a core node of a model of {count:.3g} parameters needs about {_shown(needed)} of host memory, spec.cells.resources.memory is "
            f"{_shown(asked)}; {remedy}"
        )
        return Condition("HostMemoryFits", Is.FALSE, "TooLittleAsked", message)
    known = [n for n in nodes if n.memory_bytes]
    gpus = job.spec.cells.gpus_per_node
    if not known:
        return Condition("HostMemoryFits", Is.UNKNOWN, "NoNodes", "no node has reported its memory yet")
    if not any(n.memory_bytes >= asked and n.gpus >= gpus for n in known):
        largest = max(n.memory_bytes for n in known)
        message = (
            f"a cell's pod asks for {_shown(asked)} and {gpus} GPUs; of {len(known)} nodes none has both (most memory: {_shown(largest)}, "
            f"most GPUs: {max(n.gpus for n in known)}); lower spec.cells.resources.memory or gpusPerNode, or add larger nodes"
        )
        return Condition("HostMemoryFits", Is.FALSE, "NoNodeIsLargeEnough", message)
    if count is None:
        return Condition("HostMemoryFits", Is.UNKNOWN, "ModelSizeUnknown", f"annotate the job with {PARAMETERS} to have it checked")
    return Condition("HostMemoryFits", Is.TRUE, "Fits", f"a core node needs about {_shown(needed)} of the {_shown(asked)} it asks for")


def _shown(size: float) -> str:
    return f"{size / 2**30:.1f}Gi"
