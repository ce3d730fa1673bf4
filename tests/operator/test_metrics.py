from __future__ import annotations

import aiohttp

from tests.tidemill.telemetry.exported import OPENMETRICS, series, undeclared, value
from tidemill.telemetry.catalogue import of
from tidemill_operator import metrics
from tidemill_operator.health import Pulse, serve


async def test_the_operator_exports_everything_that_is_declared_for_it_and_nothing_else() -> None:
    assert metrics.REGISTRY.missing == ()
    metrics.API_CALLS.of("PATCH", "Pod", "200").inc(0)
    metrics.LEADER.set(1)
    runners = await serve("127.0.0.1", 0, 0, Pulse())
    port = runners[1].addresses[0][1]
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept": OPENMETRICS}) as answer:
            told = await answer.text()
    finally:
        metrics.LEADER.set(0)
        for runner in runners:
            await runner.cleanup()
    assert undeclared(told, "operator") == []
    assert {metric.family for metric in of("operator")} == {line.split()[2] for line in told.splitlines() if line.startswith("# TYPE")}
    assert value(series(told), "tidemill_operator_leader") == 1
