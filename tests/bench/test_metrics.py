"""How many series a large job has. What a page and a count cost in time is printed by `python -m bench.metrics`."""

from __future__ import annotations

from bench import metrics_pages as pages
from bench.metrics import Page, count
from tests.tidemill.telemetry.exported import OPENMETRICS, undeclared

MOST_SERIES = 100_000


def by_process(found: list[Page]) -> dict[str, int]:
    return {page.process: page.series for page in found}


async def test_a_job_of_a_thousand_cells_and_ten_thousand_executions_has_less_than_a_hundred_thousand_series() -> None:
    found, series, of_gpu, of_port = await count(1_000, 10_000)
    assert {page.process: page.pages for page in found if page.pages > 1} == {"cell": 1_000, "trainer of a satellite": 999}
    assert 60_000 < series < MOST_SERIES
    assert series + 1_000 * (of_gpu + of_port) < MOST_SERIES, "also with a GPU and an RDMA port in each cell"


async def test_executions_add_no_series_and_cells_only_their_own() -> None:
    few, many = by_process((await count(2, 64))[0]), by_process((await count(2, 640))[0])
    assert few == many
    more = by_process((await count(3, 64))[0])
    assert {process: number - few[process] for process, number in more.items() if number != few[process]} == {"conductor": 7}


async def test_what_is_measured_is_what_is_declared() -> None:
    async with pages.conductor(3, 64) as (registry, _):
        assert registry.missing == ()
        assert undeclared(registry.page(OPENMETRICS)[0].decode(), "conductor") == []
    filled = await pages.cell(gpus=2, ports=1)
    assert filled.missing == ()
    assert undeclared(filled.page(OPENMETRICS)[0].decode(), "cell") == []
