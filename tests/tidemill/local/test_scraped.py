from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tidemill.local.scraped import Scraper, Series, idle_shares, read
from tidemill.local.scraping import announce
from tidemill.telemetry.catalogue import cell, gateway, trainer
from tidemill.telemetry.registry import Registry


@contextmanager
def serving(registry: Registry) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(registry.page()[0])

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_shares_and_rates_are_of_the_time_between_two_readings(tmp_path: Path) -> None:
    spent, idle, waited, calls, now = {"Rollout": 100.0}, {"NoWork": 90.0}, {"NoWork": 0.0}, [10], [0.0]
    of_cell, of_trainer, of_gateway = (
        Registry("cell", job="tiny", cell="cell-0", rank="0"),
        Registry("trainer", job="tiny", cell="cell-0"),
        Registry("gateway", job="tiny"),
    )
    of_cell.read(cell.ROLE, lambda: {"Training": 1})
    of_cell.read(cell.ROLE_SECONDS, lambda: spent)
    of_cell.read(cell.IDLE_SECONDS, lambda: idle)
    of_trainer.read(trainer.IDLE_SECONDS, lambda: waited)
    of_gateway.read(gateway.CALLS, lambda: calls[0])
    of_gateway.read(gateway.LIVE_CALLS, lambda: 3)
    with serving(of_cell) as a, serving(of_trainer) as b, serving(of_gateway) as c:
        found = [("cell", a), ("trainer", b), ("gateway", c), ("conductor", "127.0.0.1:1"), ("cell", "127.0.0.1:1")]
        announce(tmp_path, [{"targets": [address], "labels": {"job": "tiny", "process": process}} for process, address in found])
        scraper = Scraper(tmp_path, lambda: now[0])
        first = scraper.measure()
        assert first is not None
        assert first.idle == {"cell-0": {"NoWork": 0.9}}
        assert (first.roles, first.live_calls, first.calls_per_second) == ({"cell-0": "Training"}, 3, 0.0)
        now[0], spent["Rollout"], idle["NoWork"], waited["NoWork"], calls[0] = 10.0, 110.0, 91.0, 2.0, 30
        second = scraper.measure()
        assert second is not None
        assert second.idle["cell-0"]["NoWork"] == pytest.approx(0.3), "of the agent and of the trainer together"
        assert second.calls_per_second == 2.0
    assert scraper.measure() is None, "nobody answers any more"


def test_a_process_that_was_restarted_counts_from_nothing() -> None:
    def series(role: float, idle: float) -> Series:
        labels = frozenset({("job", "tiny"), ("cell", "cell-0")})
        return {(cell.ROLE_SECONDS.name, labels | {("role", "Rollout")}): role, (cell.IDLE_SECONDS.name, labels | {("cause", "NoWork")}): idle}

    assert idle_shares(series(1000.0, 900.0), series(10.0, 1.0)) == {"cell-0": {"NoWork": 0.1}}


def test_a_folder_without_a_running_job_says_nothing(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
    (tmp_path / "prometheus.json").write_text("{")
    assert read(tmp_path) == {}
    (tmp_path / "prometheus.json").write_text(json.dumps([]))
    assert read(tmp_path) == {}
