from __future__ import annotations

import time
from pathlib import Path

import aiohttp
import pytest

from tests.tidemill.telemetry.exported import OPENMETRICS, Series, series, undeclared, value
from tests.trainer.world import Trainer, world
from tidemill.telemetry.catalogue import of
from tidemill.telemetry.catalogue import trainer as catalogue
from tidemill_trainer.ledger import BUSY, IDLE, JOINING_CLOSED, NO_WORK, Ledger

pytestmark = pytest.mark.timeout(300)


async def page(trainer: Trainer, session: aiohttp.ClientSession) -> str:
    async with session.get(trainer.url + "/metrics", headers={"Accept": OPENMETRICS}) as answer:
        assert answer.status == 200
        return await answer.text()


def spent(told: Series, name: str) -> float:
    return sum(seconds for (found, _), seconds in told.items() if found == name)


async def test_trainers_tell_what_they_moved_and_where_the_time_for_which_they_were_joined_went(tmp_path: Path) -> None:
    async with world(tmp_path, wanted_by=lambda index: f"cell-{index % 2}") as job:
        core, satellite = job.start("cell-0"), job.start("cell-1")
        await core.join(1)
        began = time.monotonic()
        await satellite.join(1, core)
        await job.trained()
        pages = [await page(trainer, job.session) for trainer in (core, satellite)]
        joined = time.monotonic() - began
        of_core, of_satellite = map(series, pages)
        assert [undeclared(told, "trainer") for told in pages] == [[], []]
        assert {m.family for m in of("trainer") if not any(f"# TYPE {m.family} " in told for told in pages)} == set()
        for told in (of_core, of_satellite):
            assert value(told, "tidemill_trainer_busy_seconds_total", activity="Compute") > 0
        both = spent(of_satellite, "tidemill_trainer_busy_seconds_total") + spent(of_satellite, "tidemill_trainer_idle_seconds_total")
        assert joined - 3.0 < both < joined + 1.0, "a question under way is counted when it is answered"
        assert value(of_core, "tidemill_trainer_microsteps_total") + value(of_satellite, "tidemill_trainer_microsteps_total") == 12
        assert value(of_core, "tidemill_trainer_checkpoints_total") == 2
        assert value(of_core, "tidemill_trainer_publications_total") == 2
        files = [file for file in (tmp_path / "checkpoints" / "step-000002").rglob("*") if file.is_file()]
        assert value(of_core, "tidemill_trainer_checkpoint_bytes") == pytest.approx(sum(file.stat().st_size for file in files), rel=0.1)
        assert value(of_core, "tidemill_trainer_step") == 2
        weights = value(of_core, "tidemill_trainer_publication_bytes")
        assert value(of_satellite, "tidemill_trainer_weight_bytes_total") % weights == 0
        assert value(of_satellite, "tidemill_trainer_gradient_bytes_total") % weights == 0
        assert value(of_satellite, "tidemill_trainer_checksum_failures_total", kind="Weights") == 0


def test_a_wait_is_split_by_what_it_was_for() -> None:
    now = [10.0]
    ledger = Ledger(lambda: now[0])
    ledger.time.turn_to("Compute")
    now[0] = 15.0
    ledger.time.turn_to("")
    now[0] = 22.0
    ledger.waited(since=15.0, closed_seconds=3.0)
    assert ledger.seconds(BUSY) == {"Compute": 5.0}
    assert ledger.seconds(IDLE) == {NO_WORK: 4.0, JOINING_CLOSED: 3.0}


def test_all_that_a_trainer_does_is_declared() -> None:
    assert set(BUSY) == set(catalogue.BUSY_SECONDS.values["activity"])
    assert set(IDLE) == set(catalogue.IDLE_SECONDS.values["cause"])
