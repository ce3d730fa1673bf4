"""The process as the runner starts it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.ports import free_port
from tests.rollout.jobs import job, task
from tests.tidemill.wire.test_trust import EC, STRANGER, identity, signed
from tidemill.telemetry.events import JobStarted, read_events
from tidemill.wire.conductor import ConductorClient, JobPhase, Tide
from tidemill.wire.http import Rejected, Unreachable


def work_folder(folder: Path) -> Path:
    task(folder / "tasks" / "copy")
    manifest = job().model_dump(mode="json", by_alias=True, exclude_defaults=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    return folder


@contextmanager
def conductor(
    folder: Path, port: int, token: str = "secret", *more: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tidemill_rollout.conductor", "--manifest", str(folder / "job.yaml"), "--workdir", str(folder)]
    command += ["--port", str(port), "--gateway-url", "http://127.0.0.1:1", "--unsafe-sandbox", *more]
    trusted = {"TIDEMILL_TOKEN": token} if environment is None else environment
    with (folder / "log").open("ab") as log, subprocess.Popen(command, stderr=log, env={**os.environ, **trusted}) as process:
        try:
            yield process
        finally:
            process.kill()


async def tide(port: int, token: str = "secret") -> Tide:
    """As soon as it answers."""
    async with aiohttp.ClientSession() as session:
        give_up = time.monotonic() + 30
        while True:
            try:
                return await ConductorClient(f"http://127.0.0.1:{port}", token, session).tide()
            except Unreachable:
                if time.monotonic() > give_up:
                    raise


def reason(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Why it did not start."""
    assert process.wait(timeout=30) == 2
    return (folder / "log").read_text()


async def test_it_starts_answers_only_who_knows_the_token_survives_a_kill_and_stops_within_five_seconds(tmp_path: Path) -> None:
    folder, port = work_folder(tmp_path), free_port()
    with conductor(folder, port) as process:
        first = await tide(port)
        assert (first.job, first.phase, [c.cell for c in first.cells]) == ("small", JobPhase.STARTING, ["cell-0", "cell-1"])
        with pytest.raises(Rejected, match="missing or wrong bearer token"):
            await tide(port, token="guessed")
        process.send_signal(signal.SIGKILL)
        process.wait()
    with conductor(folder, port) as process:
        second = await tide(port)
        assert second.sequence > first.sequence, "who waits for something newer is not left waiting"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=5) == 0
    assert [e.resumed for e in read_events(folder / "metrics.jsonl") if isinstance(e, JobStarted)] == [False, True]


async def test_a_second_conductor_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder, port = work_folder(tmp_path), free_port()
    with conductor(folder, port):
        await tide(port)
        with conductor(folder, free_port()) as second:
            assert "another conductor works in this folder" in reason(folder, second)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    folder = work_folder(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with conductor(folder, port) as process:
            assert f'"port": {port}' in reason(folder, process)


def test_without_a_token_it_does_not_start(tmp_path: Path) -> None:
    folder = work_folder(tmp_path)
    with conductor(folder, free_port(), token="") as process:
        assert "set TIDEMILL_TOKEN" in reason(folder, process)


async def test_on_a_cluster_it_answers_tokens_of_the_cluster_on_every_address(tmp_path: Path) -> None:
    folder, port = work_folder(tmp_path), free_port()
    identity(folder)
    environment = {"TIDEMILL_TOKEN_FILE": str(folder / "token"), "TIDEMILL_TRUST": str(folder / "trust.json")}
    with conductor(folder, port, "", "--host", "0.0.0.0", environment=environment):
        assert (await tide(port, signed(EC, "second"))).job == "small"
        with pytest.raises(Rejected, match="nobody who takes part in this job"):
            await tide(port, signed(sub=STRANGER))
        with socket.create_connection(("127.0.0.2", port)):
            pass


def test_pods_need_to_be_told_what_a_sandbox_pod_is(tmp_path: Path) -> None:
    folder = work_folder(tmp_path)
    with conductor(folder, free_port(), "secret", "--sandboxes", "pods") as process:
        assert "--sandbox-config is missing" in reason(folder, process)


def test_a_task_that_is_trained_and_held_out_is_refused_by_name(tmp_path: Path) -> None:
    folder = work_folder(tmp_path)
    manifest = yaml.safe_load((folder / "job.yaml").read_text())
    shutil.copytree(folder / "tasks", folder / "others")
    manifest["spec"]["evaluation"] = {"source": "path:others"}
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    with conductor(folder, free_port()) as process:
        assert "is held out and trained" in reason(folder, process)
