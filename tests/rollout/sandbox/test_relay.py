"""What breaks between the sandbox and the gateway does not reach the harness: real sockets, a gateway that is cut off wherever it hurts."""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill_rollout.sandbox.relay import CALL_HEADER, DELIVERED_HEADER, Relay

EVENTS = (b'event: message_start\ndata: {"a": 1}\n\n', b"event: content\ndata: {}\n\n", b"event: message_stop\ndata: {}\n\n")


def chunked(*chunks: bytes, kind: str = "text/event-stream") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


STREAM = chunked(EVENTS[0], EVENTS[1] + EVENTS[2])
WHOLE = b"".join(EVENTS)


class Gateway:
    """Answers the requests that come, one a connection, each as `answers` says: with these bytes, then closed."""

    def __init__(self, answers: Callable[[int], bytes], pause_seconds: float = 0.0) -> None:
        self.heard: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self._answers = answers
        self._pause_seconds = pause_seconds

    def connect(self) -> socket.socket:
        near, far = socket.socketpair()
        threading.Thread(target=self._serve, args=(far,), daemon=True).start()
        return near

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(BrokenPipeError):  # who was refused has hung up
            stream.readline()
            headers = {}
            while (line := stream.readline().strip()) != b"":
                name, _, value = line.decode().partition(": ")
                headers[name] = value
            self.bodies.append(stream.read(int(headers.get("Content-Length", 0))))
            self.heard.append(headers)
            for part in self._answers(len(self.heard)).split(b"|pause|"):
                connection.sendall(part)
                time.sleep(self._pause_seconds)


@contextmanager
def harness(gateway: Gateway, **seconds: float) -> Iterator[http.client.HTTPConnection]:
    """A client whose connection is relayed."""
    relay = Relay(gateway.connect, **seconds)
    near, inner = socket.socketpair()
    thread = threading.Thread(target=relay.serve, args=(inner,), daemon=True)
    thread.start()
    client = http.client.HTTPConnection("127.0.0.1")
    client.sock = near
    yield client
    client.close()
    thread.join(5)
    assert not thread.is_alive()


def ask(client: http.client.HTTPConnection, body: bytes = b"{}", **headers: str) -> tuple[int, bytes]:
    client.request("POST", "/x/e/v1/messages", body, {"Authorization": "Bearer key", **headers})
    answer = client.getresponse()
    return answer.status, answer.read()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(STREAM) - 1))
def test_wherever_the_answer_is_cut_the_harness_gets_it_whole_and_once(at: int) -> None:
    gateway = Gateway(lambda count: STREAM[:at] if count == 1 else STREAM)
    with harness(gateway) as client:
        assert ask(client) == (200, WHOLE)
        assert ask(client) == (200, WHOLE)  # on the same connection
    first, again, second = gateway.heard
    assert first[CALL_HEADER] == again[CALL_HEADER] != second[CALL_HEADER]
    assert DELIVERED_HEADER not in first | again
    assert second[DELIVERED_HEADER] == first[CALL_HEADER]
    assert first["Authorization"] == "Bearer key"


@pytest.mark.parametrize("events", [1, 2])
def test_a_stream_that_is_closed_properly_before_its_last_event_is_asked_for_again(events: int) -> None:
    cut = chunked(*EVENTS[:events])
    with harness(Gateway(lambda count: cut if count == 1 else STREAM)) as client:
        assert ask(client) == (200, WHOLE)


@pytest.mark.parametrize("sent", [b"", b" ", b' {"a": [1, 2', b'{"a": "}'])
def test_an_answer_in_json_that_is_closed_properly_before_its_end_is_asked_for_again(sent: bytes) -> None:
    whole = b'  {"a": [1, 2]}'
    with harness(Gateway(lambda count: chunked(*filter(None, [sent]) if count == 1 else [whole], kind="application/json"))) as client:
        assert ask(client) == (200, whole)


@pytest.mark.parametrize(
    "last", [b"data: [DONE]", b'event: response.completed\ndata: {"output": []}', b'data: {"error": {}}', b"event: error\ndata: {}"]
)
def test_the_last_events_of_all_wires_are_known(last: bytes) -> None:
    gateway = Gateway(lambda count: chunked(EVENTS[0], last + b"\n\n"))
    with harness(gateway) as client:
        assert ask(client)[1].endswith(last + b"\n\n")
    assert len(gateway.heard) == 1


def test_an_error_is_passed_on_as_it_is() -> None:
    error = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 2\r\n\r\n{}"
    gateway = Gateway(lambda count: error)
    with harness(gateway) as client:
        assert ask(client) == (503, b"{}")
    assert len(gateway.heard) == 1


def test_an_answer_that_takes_long_is_passed_on_while_it_comes() -> None:
    slow = STREAM.replace(b"\r\n\r\n", b"\r\n\r\n|pause|", 1).replace(EVENTS[0] + b"\r\n", EVENTS[0] + b"\r\n|pause|")
    gateway = Gateway(lambda count: slow, pause_seconds=0.2)
    with harness(gateway, hold_seconds=0.1) as client:
        client.request("POST", "/", b"{}")
        began = time.monotonic()
        answer = client.getresponse()
        at_head = time.monotonic() - began
        assert answer.read() == WHOLE
        assert at_head < time.monotonic() - began - 0.1


def test_an_answer_that_was_begun_and_breaks_is_a_broken_connection_for_the_harness() -> None:
    slow = STREAM[: -len(EVENTS[2])].replace(b"\r\n\r\n", b"\r\n\r\n|pause|", 1).replace(EVENTS[0] + b"\r\n", EVENTS[0] + b"\r\n|pause|")
    with harness(Gateway(lambda count: slow, pause_seconds=0.2), hold_seconds=0.1) as client:
        client.request("POST", "/", b"{}")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            client.getresponse().read()


def test_of_a_stream_that_was_begun_and_is_closed_properly_before_its_end_what_came_last_is_kept_back() -> None:
    """It may hold all of a text, or of a call to a tool: with that Claude Code ends, and opencode goes on."""
    slow = chunked(*EVENTS[:2]).replace(b"\r\n\r\n", b"\r\n\r\n|pause|", 1).replace(EVENTS[0] + b"\r\n", EVENTS[0] + b"\r\n|pause|")
    with harness(Gateway(lambda count: slow, pause_seconds=0.2), hold_seconds=0.1) as client:
        client.request("POST", "/", b"{}")
        answer = client.getresponse()
        assert answer.read(len(EVENTS[0])) == EVENTS[0]
        with pytest.raises((http.client.IncompleteRead, ConnectionError)) as broken:
            answer.read()
        assert getattr(broken.value, "partial", b"") == b""


def test_a_gateway_that_falls_silent_is_asked_again() -> None:
    silent = STREAM[:-50] + b"|pause|" + STREAM[-50:]
    gateway = Gateway(lambda count: silent if count == 1 else STREAM, pause_seconds=2.0)
    with harness(gateway, idle_seconds=0.2) as client:
        began = time.monotonic()
        assert ask(client) == (200, WHOLE)
        assert time.monotonic() - began < 2.0
    assert len(gateway.heard) == 2


def test_a_gateway_that_stays_away_is_given_up_after_a_while() -> None:
    with harness(Gateway(lambda count: b""), patience_seconds=0.3) as client, pytest.raises(ConnectionError):
        ask(client)


def test_a_harness_that_hangs_up_leaves_no_connection_behind() -> None:
    left = threading.Event()

    class Silent(Gateway):
        def _serve(self, connection: socket.socket) -> None:
            with connection:
                connection.recv(2**16)
                connection.recv(1)
                left.set()

    with harness(Silent(lambda count: b"")) as client:
        client.request("POST", "/", b"{}")
    assert left.wait(5)


def test_its_own_headers_cannot_be_forged_and_hop_headers_end_here() -> None:
    gateway = Gateway(lambda count: STREAM)
    with harness(gateway) as client:
        ask(client, **{CALL_HEADER: "forged", DELIVERED_HEADER.lower(): "forged", "Connection": "keep-alive", "X-Own": "kept"})
    (heard,) = gateway.heard
    assert "forged" not in heard.values()
    assert (heard["Connection"], heard["X-Own"]) == ("close", "kept")


def test_a_large_request_is_streamed_and_one_in_chunks_gets_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill_rollout.sandbox.relay.KEPT_BYTES", 1000)
    gateway = Gateway(lambda count: STREAM)
    with harness(gateway) as client:
        assert ask(client, bytes(5000)) == (200, WHOLE)
        chunks: Any = iter([b"{", b"}"])
        client.request("POST", "/", chunks, encode_chunked=True)
        assert client.getresponse().read() == WHOLE
    assert gateway.bodies == [bytes(5000), b"{}"]


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/2\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(text: bytes) -> None:
    near, inner = socket.socketpair()
    gateway = Gateway(lambda count: STREAM)
    threading.Thread(target=Relay(gateway.connect).serve, args=(inner,), daemon=True).start()
    with near:
        near.sendall(text)
        assert near.recv(2**16).startswith(b"HTTP/1.1 400 ")
    assert gateway.heard == []
