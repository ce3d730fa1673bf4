"""What metrics cost: series of a large job, seconds of a page, and the share of a gateway's work that counting is.

    .venv/bin/python -m bench.metrics [--json] [--cells 1000] [--executions 10000] [--rounds 24]

Pages are those of the real registries; each is asked for often, after something has changed. The gateway is measured in pairs: two gateways, one of
which counts nothing, answer the same calls in turns, and what is compared is their own CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from bench import metrics_pages as pages
from bench.metrics_pair import Pair, measure
from tidemill.telemetry.registry import OPENMETRICS, Registry
from tidemill_trainer.core import Core
from tidemill_trainer.satellite import Satellite

ASKED = 15


@dataclass(frozen=True)
class Page:
    process: str
    pages: int  # of a job
    series: int  # of one page
    kilobytes: float
    milliseconds: float  # of CPU, median of one page, as OpenMetrics


@dataclass(frozen=True)
class Result:
    pages: list[Page]
    series: int  # of the job, without GPUs
    series_of_a_gpu: int
    series_of_an_rdma_port: int
    gateway: Pair | None


def page_of(process: str, registry: Registry, count: int = 1, change: Callable[[], object] = lambda: None) -> Page:
    text = registry.page(OPENMETRICS)[0]
    seconds = []
    for _ in range(ASKED):
        change()
        began = time.thread_time()
        registry.page(OPENMETRICS)
        seconds.append(time.thread_time() - began)
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return Page(process, count, series, len(text) / 1000, 1000 * statistics.median(seconds))


async def count(cells: int, executions: int) -> tuple[list[Page], int, int, int]:
    """Pages, series of the whole job, and what a GPU and an RDMA port add."""
    async with pages.conductor(cells, executions) as (registry, change):
        found = [page_of("conductor", registry, 1, change)]
    found.append(page_of("gateway", pages.gateway(cells, executions)))
    one = page_of("cell", await pages.cell(), cells)
    found += [one, page_of("trainer of the core", pages.trainer(Core)), page_of("trainer of a satellite", pages.trainer(Satellite), cells - 1)]
    found.append(page_of("operator", pages.of_operator()))
    gpu = page_of("cell", await pages.cell(gpus=1)).series - one.series
    port = page_of("cell", await pages.cell(ports=1)).series - one.series
    return found, sum(page.pages * page.series for page in found), gpu, port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cells", type=int, default=1_000)
    parser.add_argument("--executions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=24, help="of the paired measurement; 0: none")
    given = parser.parse_args()
    found, series, gpu, port = asyncio.run(count(given.cells, given.executions))
    pair = asyncio.run(measure(given.rounds)) if given.rounds else None
    result = Result(found, series, gpu, port, pair)
    if given.json:
        print(json.dumps(asdict(result)))
        return 0
    print(f"{given.cells:,} cells, {given.executions:,} executions\n")
    print(f"{'process':24}{'pages':>8}{'series each':>14}{'kB each':>10}{'CPU ms each':>14}")
    for page in found:
        print(f"{page.process:24}{page.pages:>8,}{page.series:>14,}{page.kilobytes:>10.1f}{page.milliseconds:>14.2f}")
    print(f"\n{series:,} series, without GPUs; a GPU adds {gpu}, an RDMA port {port}")
    if pair is not None:
        interval = f"95% interval {100 * pair.low:.2f}% to {100 * pair.high:.2f}%"
        print(f"gateway: {pair.microseconds:.0f} us of CPU a call; counting takes {100 * pair.share:.2f}% of it ({interval}),")
        alone = pair.counting_microseconds
        print(f"         {alone:.1f} us ({100 * alone / pair.microseconds:.2f}%) when it is done alone, again and again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
