"""Every label that a metric may have. All are bounded by the size of a job or by the code; none names an execution, a task, a turn or a person."""

from __future__ import annotations

LABELS: dict[str, str] = {
    "job": "name of the RLJob",
    "cell": "name of the cell in its job: cell-0 is the core",
    "rank": "node of a cell of several nodes, from 0",
    "role": "what a cell does: Rollout or Training, or why it does neither: Flipping, Starting, Failed",
    "to": "the role that a flip leads to",
    "phase": "part of a flip, or the phase of a job",
    "cause": "why a cell that could work does not",
    "activity": "what a trainer does",
    "child": "engine or trainer, as a child process of the agent",
    "state": "of executions, groups or micro-steps, as in the conductor's store",
    "outcome": "how an execution ended: Scored or Dropped",
    "reason": "why something was dropped, requeued or not loaded, in one word",
    "kind": "of a condition that holds a job back, or of an object of the API server",
    "part": "Early: the half of a burst's groups that was ready first; Late: the others",
    "wire": "protocol of the harness: chat, messages or responses",
    "code": "HTTP status",
    "verb": "HTTP method",
    "gpu": "the GPU, as CUDA_VISIBLE_DEVICES names it: an index or a UUID",
    "xid": "number of an XID error, from NVIDIA's list",
    "device": "RDMA device, as in /sys/class/infiniband",
    "port": "port of an RDMA device, from 1",
}
