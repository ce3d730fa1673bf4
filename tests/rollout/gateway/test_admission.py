"""Who may do what: an execution's key opens its own wires, the job's token everything else, and the sandbox's socket only the wires."""

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import pytest

from tests.rollout.gateway.world import TOKEN, until, world
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import OpenExecution
from tidemill_rollout.gateway import executions, receiving

BODY = {"messages": [{"role": "user", "content": "go"}]}
CHAT = "/x/e1/v1/chat/completions"


async def test_a_key_is_good_for_its_own_execution_only(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.open("e2")
        for key, path, status in [
            ("key-of-e1", CHAT, 200),
            ("key-of-e2", CHAT, 401),
            (TOKEN, CHAT, 401),
            ("", CHAT, 401),
            ("key-of-e1", "/x/e3/v1/chat/completions", 404),
        ]:
            async with w.post(path, BODY, key=key) as response:
                assert response.status == status, (key, path)
        async with w.session.post(w.url + CHAT, json=BODY, headers={"x-api-key": "key-of-e1"}) as response:
            assert response.status == 200


async def test_errors_come_in_the_shape_of_the_wire(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.post("/x/e1/v1/messages", BODY, key="wrong") as response:
            assert (await response.json())["error"]["type"] == "authentication_error"
        async with w.post(CHAT, BODY, key="wrong") as response:
            assert (await response.json())["error"]["param"] is None
        async with w.session.post(w.url + CHAT, data=b"{", headers={"x-api-key": "key-of-e1"}) as response:
            assert response.status == 400


@pytest.mark.parametrize("path", ["/v1/state", "/v1/executions/e1/close?attempt=1", "/v1/nothing"])
async def test_an_execution_key_opens_nothing_internal(tmp_path: Path, path: str) -> None:
    async with world(tmp_path) as w:
        for key in ("key-of-e1", ""):
            async with w.session.get(w.url + path, headers={"Authorization": f"Bearer {key}"}) as response:
                assert response.status == 401


async def test_the_socket_of_the_sandboxes_serves_harnesses_and_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path) as w, aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "gateway.sock"))) as jail:
        async with jail.post("http://any" + CHAT, json=BODY, headers={"x-api-key": "key-of-e1"}) as response:
            assert response.status == 200
        for path in ("/v1/state", "/healthz", "/metrics", "/x/../v1/state"):
            async with jail.get("http://any" + path, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
                assert response.status == 404
        assert w.url


async def test_a_call_after_the_deadline_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.client.open(OpenExecution("late", 1, "key", "react", Sampling(10), deadline=time.time() - 1))
        async with w.post("/x/late/v1/chat/completions", BODY, key="key") as response:
            assert response.status == 403


async def test_a_flood_is_told_to_come_again_and_never_429(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "CALLS_PER_EXECUTION", 3)
    async with world(tmp_path) as w:
        engine = w.engines["cell-0"]
        engine.hold_after = 1
        await w.open("e2")
        asked = [asyncio.create_task(w.ask(f"{n}")) for n in range(3)]
        await until(lambda: len(engine.requests) == 3)
        async with w.post(CHAT, BODY, key="key-of-e1") as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
        other = asyncio.create_task(w.ask("go", "e2"))  # another execution is not affected
        await until(lambda: len(engine.requests) == 4)
        engine.go.set()
        assert await asyncio.gather(*asked, other) == ["hello"] * 4
        assert await w.ask("go") == "hello"


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MAX_BODY_BYTES", 1000)
    body = {"messages": [{"role": "user", "content": "x" * 2000}]}
    async with world(tmp_path) as w, w.post("/x/e1/v1/messages", body, key="key-of-e1") as response:
        assert response.status == 413
        assert (await response.json())["error"]["type"] == "request_too_large"


async def test_health_and_metrics_need_no_key(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.ask("go")
        async with w.session.get(w.url + "/healthz") as response:
            assert response.status == 200
        async with w.session.get(w.url + "/metrics") as response:
            assert 'tidemill_gateway_calls_total{job="tiny"} 1.0\n' in await response.text()


async def test_a_key_of_any_bytes_is_a_wrong_key(tmp_path: Path) -> None:
    """Sent raw: clients with manners do not."""
    async with world(tmp_path) as w:
        for path, headers, status in [
            (CHAT, b"x-api-key: sch\xc3\xb6n", b"401"),
            (CHAT, b"Authorization: Bearer \xff\xfe", b"401"),
            ("/v1/state", b"Authorization: Bearer \xff\xfe", b"401"),
            ("/x/e1/v1/messages", b"x-api-key: key-of-e1\r\nx-claude-code-agent-id: \xff\xfe", b"200"),
        ]:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(w.url.rpartition(":")[2]))
            body = json.dumps(BODY).encode() if path != "/v1/state" else b""
            method = b"GET" if path == "/v1/state" else b"POST"
            head = b"%s %s HTTP/1.1\r\nHost: any\r\nContent-Length: %d\r\n%s\r\n\r\n" % (method, path.encode(), len(body), headers)
            writer.write(head + body)
            answer = await reader.readline()
            writer.close()
            assert answer.split()[1] == status, (path, headers)


@pytest.mark.parametrize("depth", [400, 900, 3000])
async def test_a_request_that_is_nested_deep_is_refused_or_served_and_no_failure_of_the_gateway(tmp_path: Path, depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    tool = f'{{"type": "function", "function": {{"name": "deep", "parameters": {nested}}}}}'
    raw = f'{{"messages": [{{"role": "user", "content": "go"}}], "tools": [{tool}]}}'
    async with world(tmp_path) as w, w.session.post(w.url + CHAT, data=raw, headers={"x-api-key": "key-of-e1"}) as response:
        assert response.status in (200, 400), await response.text()


async def test_a_tool_without_a_function_is_told_what_is_missing(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.post(CHAT, {**BODY, "tools": [{"type": "function"}]}, key="key-of-e1") as response:
        assert response.status == 400
        assert "tools[0].function is missing" in (await response.json())["error"]["message"]
