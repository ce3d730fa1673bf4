"""A harness that means harm: what it sends costs the gateway little and others nothing, and gets it nothing that is not its own."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rollout.gateway.world import World, until, world
from tidemill_rollout.gateway import process, receiving, server

CHAT = "/x/e1/v1/chat/completions"
KEY = {"x-api-key": "key-of-e1"}
BODY = {"messages": [{"role": "user", "content": "go"}]}
RAW = json.dumps(BODY).encode()


async def sent(w: World, *parts: bytes, wait_seconds: float = 5.0) -> bytes:
    """All that comes back on one connection, to its end or until nothing more comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(w.url.rpartition(":")[2]))
    answer = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(wait_seconds):
            while part := await reader.read(65536):
                answer += part
                if b"\r\n0\r\n\r\n" in answer:
                    break
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return answer


def post(*headers: bytes, path: str = CHAT) -> bytes:
    return b"\r\n".join([b"POST %s HTTP/1.1" % path.encode(), b"Host: any", b"x-api-key: key-of-e1", *headers, b"", b""])


SMUGGLED = b"GET /x/e1/v1/models HTTP/1.1\r\nHost: any\r\nx-api-key: key-of-e1\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"Content-Length: %d" % len(RAW), b"Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED,
        post(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"0\r\n\r\n" + SMUGGLED,
        post(b"Content-Length: 5", b"Content-Length: 6") + b"hello" + SMUGGLED,
        post(b"Content-Length: +5") + b"hello" + SMUGGLED,
        post(b"Content-Length: 5, 5") + b"hello" + SMUGGLED,
        post(b"Transfer-Encoding: xchunked") + b"0\r\n\r\n" + SMUGGLED,
        post(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n" + SMUGGLED,
        post(b"Transfer-Encoding : chunked") + b"0\r\n\r\n" + SMUGGLED,
        post(b"Transfer-Encoding: chunked") + b"5;\n\r\nhello\r\n0\r\n\r\n" + SMUGGLED,
        post(b"Transfer-Encoding: chunked") + b"fffffffffffffffff\r\n" + SMUGGLED,
        post(b"x-note: a\rContent-Length: 5") + SMUGGLED,
        post(b"x-note: a\nContent-Length: 5") + SMUGGLED,
        post(b"x-note: a\x00b") + SMUGGLED,
        post(b" folded: x") + SMUGGLED,
        post(b"no colon here") + SMUGGLED,
        post().replace(b"\r\n", b"\n") + SMUGGLED,
        post(b"x-long: " + b"a" * 100_000) + SMUGGLED,
        post(*[b"x-%d: a" % n for n in range(5000)]) + SMUGGLED,
        post(path="/x/e1/" + "a" * 100_000) + SMUGGLED,
        b"POST " + CHAT.encode() + b" HTTP/9.9\r\n\r\n" + SMUGGLED,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SMUGGLED,
    ],
)
async def test_what_is_no_proper_request_hides_no_second_one(tmp_path: Path, request_bytes: bytes) -> None:
    async with world(tmp_path) as w:
        answer = await sent(w, request_bytes, wait_seconds=2.0)
        assert b'"object":"list"' not in answer, "the hidden request was answered"
        assert not answer or answer.split()[1].startswith(b"4"), answer[:200]
        assert await w.ask("go") == "hello"


async def test_requests_one_behind_the_other_are_requests_of_their_own(tmp_path: Path) -> None:
    """So that the test above can fail."""
    async with world(tmp_path) as w:
        answer = await sent(w, post(b"Content-Length: %d" % len(RAW)) + RAW + SMUGGLED, wait_seconds=2.0)
        assert answer.count(b"HTTP/1.1 200") == 2
        assert b'"object":"list"' in answer


async def test_a_hundred_megabytes_are_refused_before_they_come(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        began = time.monotonic()
        answer = await sent(w, post(b"Content-Length: 100000000"))
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"larger than 32 MiB" in answer
        assert time.monotonic() - began < 5


async def test_a_body_without_an_announced_length_is_refused_where_it_exceeds_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MAX_BODY_BYTES", 2**20)
    sent_bytes = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent_bytes
        while sent_bytes < 100 * 2**20:
            sent_bytes += 2**16
            yield b" " * 2**16

    async with world(tmp_path) as w, aiohttp.ClientSession() as session:
        try:
            async with session.post(w.url + CHAT, data=endless(), headers=KEY) as response:
                assert response.status == 413
        except aiohttp.ClientError:
            pass  # it was still sending when it was hung up on
        assert sent_bytes < 60 * 2**20
        assert await w.ask("go") == "hello"


async def test_a_small_body_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MAX_BODY_BYTES", 2**20)
    bomb = gzip.compress(b" " * 50 * 2**20)
    async with world(tmp_path) as w, w.session.post(w.url + CHAT, data=bomb, headers={**KEY, "Content-Encoding": "gzip"}) as response:
        assert response.status == 413


@pytest.mark.parametrize("headers", [{"Content-Encoding": "gzip"}, {"Content-Encoding": "deflate"}])
async def test_a_body_that_is_not_what_it_says_is_a_bad_request(tmp_path: Path, headers: dict[str, str]) -> None:
    async with world(tmp_path) as w, w.session.post(w.url + CHAT, data=RAW, headers={**KEY, **headers}) as response:
        assert response.status == 400


async def test_an_upload_that_trickles_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "RECEIVE_SECONDS", 0.1)
    async with world(tmp_path) as w:
        answer = await sent(w, post(b"Content-Length: 1000"), b"{")
        assert answer.startswith(b"HTTP/1.1 408")


async def test_headers_that_never_end_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "QUIET_SECONDS", 0.2)
    async with world(tmp_path) as w:
        began = time.monotonic()
        assert await sent(w, b"POST /x/e1/v1/messages HTTP/1.1\r\nHost: a\r\nx-slow: ", wait_seconds=20) == b""
        assert time.monotonic() - began < 15


async def test_bodies_that_come_in_at_once_share_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MOST_RECEIVED_BYTES", 100_000)
    receiver = receiving.Receiver()
    monkeypatch.setattr(server, "Receiver", lambda: receiver)
    async with world(tmp_path) as w:
        _, writer = await asyncio.open_connection("127.0.0.1", int(w.url.rpartition(":")[2]))
        writer.write(post(b"Content-Length: 90001") + b" " * 90_000)
        await until(lambda: receiver.receiving == 90_000)
        async with w.session.post(w.url + CHAT, data=b" " * 20_000, headers=KEY) as response:
            assert response.status == 503
            assert response.headers["Retry-After"]
        writer.transport.abort()
        await until(lambda: receiver.receiving == 0)
        assert await w.ask("go") == "hello"


async def test_a_harness_that_does_not_read_is_hung_up_on_and_its_answer_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WRITE_SECONDS", 0.05)
    write = web.StreamResponse.write

    async def stuck(self: web.StreamResponse, data: bytes) -> None:
        if b"hello" in data:
            await asyncio.Event().wait()
        await write(self, data)

    async with world(tmp_path) as w:
        with monkeypatch.context() as patch:
            patch.setattr(web.StreamResponse, "write", stuck)
            with pytest.raises(aiohttp.ClientError):
                async with w.post(CHAT, {**BODY, "stream": True}, key="key-of-e1") as response:
                    await response.read()
        assert await w.ask("go") == "hello"
        assert len(w.engines["cell-0"].requests) == 1
        assert (await w.state()).attached_retries == 1


async def test_requests_beyond_the_limit_of_an_execution_are_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "REQUESTS_PER_EXECUTION", 4)
    async with world(tmp_path) as w:
        engine = w.engines["cell-0"]
        engine.hold_after = 1
        await w.open("e2")
        same = [asyncio.create_task(w.ask("go")) for _ in range(4)]  # attached to one call
        await until(lambda: w.now.gateway.state().attached_retries == 3)
        async with w.post(CHAT, BODY, key="key-of-e1") as response:
            assert response.status == 503
            assert response.headers["Retry-After"]
        other = asyncio.create_task(w.ask("go", "e2"))
        await until(lambda: len(engine.requests) == 2)
        engine.go.set()
        assert await asyncio.gather(*same, other) == ["hello"] * 5


async def test_another_executions_turn_ids_and_keys_lead_nowhere(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.open("e2")
        await w.ask("secret")
        await w.close("e1")
        [stolen] = w.turns
        for signature in (stolen.id, "t" + "0" * 20, stolen.id + "x", "tt" * 500, "\x00"):
            thought = {"type": "thinking", "thinking": "", "signature": signature}
            call = {"type": "tool_use", "id": f"toolu_{signature}x0", "name": "bash", "input": {}}
            messages = [
                {"role": "user", "content": "secret"},
                {"role": "assistant", "content": [thought, call]},
                {"role": "user", "content": signature},
            ]
            async with w.post("/x/e2/v1/messages", {"messages": messages, "max_tokens": 9}, key="key-of-e2") as response:
                assert response.status == 200
        for path, key in [("/x/e1/v1/messages", "key-of-e1"), ("/x/e2/v1/messages", "key-of-e1"), ("/x/e2/../e1/v1/messages", "key-of-e2")]:
            async with w.post(path, BODY, key=key) as response:
                assert response.status in (401, 404)
        await w.close("e2")
        theirs = [turn for turn in w.turns if turn.execution == "e2"]
        assert len(theirs) == 5
        assert all(turn.parent == "" for turn in theirs)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/messages/count_tokens", "/v1/models", "/api/hello", "/sandbox/task", ""]


async def test_whatever_a_body_holds_it_is_answered_and_nothing_stays(tmp_path: Path) -> None:
    """One gateway for all examples: what each leaves behind would add up."""
    async with world(tmp_path) as w:
        loop = asyncio.get_running_loop()
        bodies = st.builds(lambda fields, message: json.dumps({**fields, **message}).encode(), st.dictionaries(st.text(max_size=9), JSON), messages())

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(PATHS), st.binary(max_size=200) | bodies, st.sampled_from(["POST", "GET", "PUT", "DELETE", "OPTIONS"]))
        def ask(path: str, body: bytes, method: str) -> None:
            asyncio.run_coroutine_threadsafe(one(path, body, method), loop).result(20)

        async def one(path: str, body: bytes, method: str) -> None:
            async with w.session.request(method, f"{w.url}/x/e1{path}", data=body, headers=KEY) as response:
                await response.read()
                assert response.status < 500 or response.headers.get("Retry-After"), (path, body)

        await asyncio.to_thread(ask)
        state = await w.state()
        assert state.live_calls == 0
        assert w.now.gateway._executions["e1"].requests == 0
        assert w.now.gateway._requests._bytes < 2**20


def messages() -> st.SearchStrategy[dict[str, object]]:
    text = st.text(max_size=20)
    part = st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image", "input_text"])}, optional={"text": text, "id": text}
    )
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]), "content": text | st.lists(part, max_size=3) | st.none()},
        optional={"tool_call_id": text, "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"])},
    )
    many = st.lists(message, max_size=4)
    return st.fixed_dictionaries({}, optional={"messages": many, "input": many | text, "stream": st.booleans(), "max_tokens": st.integers(-2, 5)})
