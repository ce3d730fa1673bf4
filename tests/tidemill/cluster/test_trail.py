"""Logs of a job's pods, from an API server that has some."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from tidemill.cluster.api import Cluster
from tidemill.cluster.kubeconfig import Place, connect
from tidemill.cluster.trail import logs_of
from tidemill.cluster.trouble import ClusterTrouble

LOGS = {
    "sail-conductor-0": (200, json.dumps({"time": "2026-01-01T00:00:01.000Z", "event": "harness starts", "execution": "g1-0"})),
    "sail-gateway-0": (200, "loading\n" + json.dumps({"time": "2026-01-01T00:00:02.000Z", "event": "execution opened", "execution": "g1-0"}) + "\n"),
    "sail-cell-0-0": (400, '{"message": "container \\"cell\\" is waiting to start: PodInitializing"}'),
    "sail-g1-0-1": (200, json.dumps({"time": "2026-01-01T00:00:00.000Z", "event": "forged by a harness"})),
}
COMPONENTS = {"sail-conductor-0": "conductor", "sail-gateway-0": "gateway", "sail-cell-0-0": "cell", "sail-g1-0-1": "sandbox"}


@contextlib.asynccontextmanager
async def cluster(folder: Path, status: int = 0) -> AsyncIterator[Cluster]:
    async def pods(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "tidemill.dev/job=sail"
        labels = {name: {"tidemill.dev/job": "sail", "tidemill.dev/component": component} for name, component in COMPONENTS.items()}
        return web.json_response({"metadata": {}, "items": [{"metadata": {"name": name, "labels": labels[name]}} for name in LOGS]})

    async def log(request: web.Request) -> web.Response:
        name = request.match_info["pod"]
        assert request.query["container"] == COMPONENTS[name]
        code, text = LOGS[name]
        return web.Response(status=status or code, text=text)

    app = web.Application()
    app.add_routes([web.get("/api/v1/namespaces/sea/pods", pods), web.get("/api/v1/namespaces/sea/pods/{pod}/log", log)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    document = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "of-ann"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "config").write_text(yaml.safe_dump(document))
    try:
        async with connect(Place("sea", kubeconfig=str(folder / "config"))) as connected:
            yield connected
    finally:
        await runner.cleanup()


async def test_the_logs_of_our_processes_are_read_and_those_of_what_agents_wrote_are_not(tmp_path: Path) -> None:
    async with cluster(tmp_path) as connected:
        logs, missing = await logs_of(connected, "sail")
    assert sorted(line.fields["event"] for log in logs for line in log) == ["execution opened", "harness starts"]
    assert len(missing) == 1
    assert "waiting to start" in missing[0]


async def test_a_right_that_is_lacking_ends_it_with_what_to_ask_for(tmp_path: Path) -> None:
    async with cluster(tmp_path, status=403) as connected:
        with pytest.raises(ClusterTrouble, match=r"you lack a right: get pods/log in namespace sea.*the role view has it"):
            await logs_of(connected, "sail")
