"""The conductor as the operator starts it in a pod, with an API server and a gateway: it makes pods for what it dispatches, and takes them along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.cluster.api_server import ApiServer
from tests.cluster.test_sandbox_pods import ACCOUNT, allow, conductor_pod
from tests.ports import free_port
from tests.rollout.conductor.world import TOKEN, Agent, Gateway, Trainer
from tests.rollout.jobs import job, task
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.http import serve


@contextmanager
def conductor(folder: Path, namespace: str, kubeconfig: str, port: int, gateway: str, uid: str, **template: Any) -> Iterator[subprocess.Popen[bytes]]:
    if not (folder / "tasks").exists():
        task(folder / "tasks" / "copy")
    manifest = job("generic", command=["true"]).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    written = {"namespace": namespace, "job": "small", "image": "product", "gatewayUrl": gateway, "template": template}
    (folder / "sandbox.json").write_text(json.dumps(written))
    command = [sys.executable, "-m", "tidemill_rollout.conductor", "--manifest", str(folder / "job.yaml"), "--workdir", str(folder)]
    command += ["--port", str(port), "--gateway-url", gateway, "--sandboxes", "pods", "--sandbox-config", str(folder / "sandbox.json")]
    environment = {**os.environ, "TIDEMILL_TOKEN": TOKEN, "TIDEMILL_KUBECONFIG": kubeconfig, "POD_NAME": "small-conductor-0", "POD_UID": uid}
    with (folder / "log").open("ab") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.asynccontextmanager
async def neighbours(port: int, gateway_port: int) -> AsyncIterator[None]:
    """A gateway that opens every door, and two cells that are ready at once, so that the conductor dispatches."""
    async with aiohttp.ClientSession() as session:
        client = ConductorClient(f"http://127.0.0.1:{port}", TOKEN, session)
        runner = await serve(Gateway(client).application(), "127.0.0.1", gateway_port)
        core = Trainer("cell-0", client)
        agents = [Agent("cell-0", 0, 1, client, core), Agent("cell-1", 1, 1, client, Trainer("cell-1", client, core))]
        tasks = [asyncio.create_task(work.run()) for agent in agents for work in (agent, agent.trainer)]
        try:
            yield
        finally:
            for working in tasks:
                working.cancel()
            await asyncio.wait(tasks)
            await runner.cleanup()


@pytest.fixture
def ours(api_server: ApiServer, namespace: str) -> str:
    allow(api_server, namespace)
    return namespace


def pods(server: ApiServer, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("pods", f"--namespace={namespace}", "--selector=tidemill.dev/job=small")["items"]
    return found


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.1)


async def test_what_is_dispatched_becomes_pods_which_a_stop_takes_along_and_a_restart_replaces(
    api_server: ApiServer, ours: str, tmp_path: Path
) -> None:
    port, gateway = free_port(), free_port()
    uid = conductor_pod(api_server, ours)
    kubeconfig = str(api_server.kubeconfig_for(ACCOUNT, ours))

    def attempts() -> set[str]:
        return {pod["metadata"]["labels"]["tidemill.dev/attempt"] for pod in pods(api_server, ours)}

    async with neighbours(port, gateway):
        with conductor(tmp_path, ours, kubeconfig, port, f"http://127.0.0.1:{gateway}", uid) as process:
            await until(lambda: len(pods(api_server, ours)) == 2)
            made = pods(api_server, ours)[0]
            assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "small-conductor-0", "uid": uid}]
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{port}/v1/executions/{made['metadata']['labels']['tidemill.dev/execution']}/sandbox/task"
                async with session.get(url) as answer:
                    assert answer.status == 401
                trusted = {"Authorization": f"Bearer {TOKEN}", "Tidemill-Attempt": "1"}
                async with session.get(url, headers=trusted) as answer:
                    assert (answer.status, b"Copy question.txt" in await answer.read()) == (200, True)
                async with session.get(url, headers={**trusted, "Tidemill-Attempt": "2"}) as answer:
                    assert answer.status == 410
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert attempts() == {"1"}
        with conductor(tmp_path, ours, kubeconfig, port, f"http://127.0.0.1:{gateway}", uid) as process:
            await until(lambda: attempts() == {"2"} and len(pods(api_server, ours)) == 2)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 20) == 0
            assert pods(api_server, ours) == []


@pytest.mark.parametrize(
    ("kubeconfig", "template", "reason"),
    [
        ("/nowhere", {}, "sandboxes as pods need a conductor in a pod"),
        ("", {"spec": {"hostNetwork": True}}, "spec.sandbox.template.spec.hostNetwork: opens the sandbox"),
    ],
)
def test_it_says_why_it_cannot_start(tmp_path: Path, kubeconfig: str, template: dict[str, Any], reason: str) -> None:
    with conductor(tmp_path, "ns", kubeconfig, free_port(), "http://127.0.0.1:1", "uid", **template) as process:
        assert process.wait(30) == 2
    assert reason in (tmp_path / "log").read_text()
