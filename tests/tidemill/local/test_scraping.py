from __future__ import annotations

import json
from pathlib import Path

from tests.tidemill.api.test_loading import document
from tidemill.api import parse_rljob
from tidemill.local import scraping
from tidemill.local.commands import Layout, commands
from tidemill.local.cores import CoreShares
from tidemill.local.ports import choose_ports


def layout(folder: Path, cells: int) -> Layout:
    return Layout(folder, folder / "model", choose_ports(cells, gateways=2), CoreShares(((),) * cells, shared=True), ((),) * cells, "token")


def test_every_process_that_listens_is_a_target_with_the_labels_that_join_its_series(tmp_path: Path) -> None:
    given = document()
    given["spec"]["cells"] |= {"count": 2, "standalone": {"replicas": 1}}
    job = parse_rljob(given)
    where = layout(tmp_path, 3)
    found = scraping.targets(job, where)
    assert {(t["labels"]["process"], t["labels"].get("cell", "")) for t in found} == {
        ("conductor", ""),
        ("gateway", ""),
        *((process, cell) for process in ("cell", "engine") for cell in ("cell-0", "cell-1", "standalone-0")),
        *(("trainer", cell) for cell in ("cell-0", "cell-1")),
    }
    assert {t["labels"]["job"] for t in found} == {job.metadata.name}
    assert len([t for t in found if t["labels"]["process"] == "gateway"]) == 2
    listening = {
        arguments[arguments.index(option) + 1]
        for c in commands(job, where)
        for arguments in [c.arguments]
        for option in ("--port", "--trainer-port")
        if option in arguments
    }
    assert {t["targets"][0].removeprefix("127.0.0.1:") for t in found} <= listening
    assert [t["labels"]["__metrics_path__"] for t in found if t["labels"]["process"] == "engine"] == ["/engine/metrics"] * 3


def test_the_file_is_there_while_the_job_runs(tmp_path: Path) -> None:
    scraping.announce(tmp_path, [{"targets": ["127.0.0.1:1"], "labels": {"job": "tiny"}}])
    assert json.loads((tmp_path / scraping.FILE).read_text())[0]["labels"] == {"job": "tiny"}
    scraping.withdraw(tmp_path)
    assert list(tmp_path.iterdir()) == []
    scraping.withdraw(tmp_path)
    scraping.announce(tmp_path / "gone", [])
