"""Which metrics an expression asks for."""

from __future__ import annotations

import re

from tidemill.telemetry.catalogue import ALL
from tidemill.telemetry.metric import Kind

VLLM = frozenset(
    {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
    }
)
"""What is drawn of vLLM's own metrics. They are not copied: whoever scrapes them gives them the labels of the cell."""

_NAME = re.compile(r"(?<![\w\"])(?:[a-z_]+:)?(?:tidemill_[a-z_]+|vllm:[a-z_]+)(?::\w+)?")
_HISTOGRAMS = {metric.name for metric in ALL if metric.kind is Kind.HISTOGRAM}


def metrics_in(expr: str) -> set[str]:
    """Names of families: of a histogram's parts the histogram's. A recorded name stands as it is."""
    return {_family(name) for name in _NAME.findall(expr)}


def _family(name: str) -> str:
    return next((base for part in ("_bucket", "_sum", "_count") if (base := name.removesuffix(part)) in _HISTOGRAMS), name)
