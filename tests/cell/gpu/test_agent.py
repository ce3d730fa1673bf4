"""An agent that was given GPUs tells of them at its `/metrics`."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests.cell.gpu.test_gpu import HERE, gpu, write
from tests.cell.test_process import agent_process
from tests.tidemill.telemetry.exported import OPENMETRICS, Series, series, undeclared, value


async def scraped(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics", headers={"Accept": OPENMETRICS}) as answer:
        return await answer.text()


async def until_it_tells(url: str, name: str) -> str:
    while True:
        try:
            page = await scraped(url)
            if name in page:
                return page
        except aiohttp.ClientError:  # it is not up yet
            pass
        await asyncio.sleep(0.05)


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(HERE / "nvml_stub.c")], check=True)
    write(tmp_path / "nvml", {"count": 2, **gpu(0), **gpu(1, utilization=90, xids=0)})
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_STUB", str(tmp_path / "nvml"))


@pytest.mark.usefixtures("two_gpus")
async def test_the_agent_exports_the_gpus_that_it_was_given_and_no_others(tmp_path: Path) -> None:
    async with agent_process(tmp_path, "--gpus", "1") as agent, asyncio.timeout(60.0):
        page = await until_it_tells(agent.client.base_url, "tidemill_gpu_utilization_ratio{")
    assert undeclared(page, "cell") == []
    found: Series = series(page)
    assert value(found, "tidemill_gpu_utilization_ratio", job="quickstart", cell="cell-1", rank="0", gpu="1") == 0.9
    assert {dict(labels)["gpu"] for name, labels in found if name.startswith("tidemill_gpu_")} == {"1"}


async def test_the_agent_of_a_cell_without_gpus_exports_nothing_of_gpus(tmp_path: Path) -> None:
    async with agent_process(tmp_path) as agent, asyncio.timeout(60.0):
        page = await until_it_tells(agent.client.base_url, "tidemill_cell_child_memory_bytes{")
    assert "tidemill_gpu" not in page
    assert "tidemill_rdma" not in page
