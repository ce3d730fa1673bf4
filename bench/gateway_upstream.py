"""What the proxies of `bench/gateway.py` have behind them: one process that answers as a model server (Chat Completions, SSE), as an engine
behind a cell agent, and as a conductor. Written on bare sockets, so that it costs little beside what is measured.

    python -m bench.gateway_upstream PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field

TICK_SECONDS = 0.01
"""Every stream advances by one token a tick."""

EVENTS = 100
"""Tokens of an answer: one event each in SSE."""

RUN = 10
"""Ticks between two runs of an engine, which tells its tokens every 0.1 s."""

FIRST_TOKEN = 300
END = 2  # <|im_end|>
WORDS = [f" word{n}" for n in range(EVENTS - 1)]

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _sse() -> list[bytes]:
    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy", "choices": [choice]}
        return b"data: " + json.dumps(frame).encode() + b"\n\n"

    events = [event({"role": "assistant", "content": WORDS[0]})] + [event({"content": word}) for word in WORDS[1:]]
    return [_chunk(one) for one in events] + [_chunk(event({}, "stop") + b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def _runs(length: int) -> list[bytes]:
    """An engine's lines, `length` tokens each; between them, ticks at which nothing is sent."""
    tokens = [FIRST_TOKEN + n for n in range(EVENTS - 1)] + [END]
    lines = [b""] * EVENTS
    for start in range(0, EVENTS, length):
        run = tokens[start : start + length]
        end = start + len(run) == EVENTS
        sampled = {"token_ids": run, "logprobs": [-0.5] * len(run), "versions": [0] * len(run), "finish_reason": "stop" if end else ""}
        lines[start + len(run) - 1] = _chunk(json.dumps(sampled).encode() + b"\n")
    return [*lines[:-1], lines[-1] + b"0\r\n\r\n"]


@dataclass
class Upstream:
    """`held`: streams begin and do not go on."""

    held: bool = False
    paced: bool = True
    streams: dict[asyncio.Transport, tuple[list[bytes], int]] = field(default_factory=dict)
    sse: list[bytes] = field(default_factory=_sse)
    runs: list[bytes] = field(default_factory=lambda: _runs(RUN))

    def answer(self, transport: asyncio.Transport, path: bytes) -> None:
        if path.startswith(b"/settings/"):  # e.g. /settings/held=1,run=10
            for setting in path.removeprefix(b"/settings/").split(b","):
                name, _, value = setting.partition(b"=")
                if name == b"run":
                    self.runs = _runs(int(value))
                else:
                    setattr(self, name.decode(), value == b"1")
            transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        elif path.startswith(b"/v1/executions/"):
            transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        else:
            engine = path.startswith(b"/inference/")
            transport.write(_HEAD % (b"application/x-ndjson" if engine else b"text/event-stream"))
            lines = self.runs if engine else self.sse
            if self.held:
                transport.write(lines[RUN - 1] if engine else lines[0])
            elif self.paced:
                self.streams[transport] = (lines, 0)
            else:
                transport.write(b"".join(lines))

    async def tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + TICK_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())
            for transport, (lines, position) in list(self.streams.items()):
                if lines[position]:
                    transport.write(lines[position])
                if position + 1 == len(lines):
                    del self.streams[transport]
                else:
                    self.streams[transport] = (lines, position + 1)


class Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._head = b""
        self._path = b""
        self._left = -1  # bytes of the body that are still to come; -1: the head is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.streams.pop(self._transport, None)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = b""
            lines = head.lower().split(b"\r\n")
            self._path = head.split(b" ", 2)[1]
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            self._chunked = any(line.startswith(b"transfer-encoding:") for line in lines)
            self._left = length
            data = rest
        if self._chunked:
            if not data.endswith(b"0\r\n\r\n"):
                return
            self._left = 0
        else:
            self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._upstream.answer(self._transport, self._path)


async def main(port: int) -> None:
    upstream = Upstream()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(upstream), "127.0.0.1", port, backlog=16384)
    print("ready", flush=True)
    async with server:
        await upstream.tick()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
