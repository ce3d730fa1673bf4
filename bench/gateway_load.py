"""The harnesses of `bench/gateway.py`: conversations on bare sockets, which send all they have said with every request and 2 kB more."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

NEW_BYTES = 2000
MESSAGE_BYTES = 8000
READ_BYTES = 2**18


@dataclass
class Conversation:
    """A request body that grows by what was answered and `NEW_BYTES` of new text."""

    size: int
    seed: int
    said: int = 0
    _body: bytes = b""

    def __post_init__(self) -> None:
        before = {"model": "policy", "stream": True, "tools": [_tool(n) for n in range(4)]}
        messages = [{"role": "system", "content": "You are an agent."}]
        drawn = random.Random(self.seed)
        length = 0
        while length < self.size - NEW_BYTES:
            text = words(drawn, min(MESSAGE_BYTES, self.size - length))
            messages.append({"role": "user" if len(messages) % 2 else "assistant", "content": text})
            length += len(text) + 30
        if messages[-1]["role"] == "user":
            messages.append({"role": "assistant", "content": "Yes."})
        self._body = json.dumps({**before, "messages": messages}).encode()[:-2]
        self._drawn = drawn

    def next(self) -> bytes:
        """The next request's body."""
        self.said += 1
        self._body += b', {"role": "user", "content": "%d %s"}' % (self.said, words(self._drawn, NEW_BYTES).encode())
        return self._body + b"]}"

    def answered(self, text: bytes) -> None:
        """`text` as it stands in JSON."""
        self._body += b', {"role": "assistant", "content": "%s"}' % text


@dataclass
class Times:
    """Seconds from the first byte of a request to the last of its answer."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class Client:
    """One connection that stays."""

    def __init__(self, port: int, path: str, key: str) -> None:
        self._port = port
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        ).encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, first: Callable[[], None] | None = None) -> bytes:
        """The whole answer, head and chunks. `first` is called when something of it has come."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=READ_BYTES)
        reader, writer = self._streams
        writer.write(self._head % len(body))
        writer.write(body)
        parts: list[bytes] = []
        while True:
            part = await reader.read(READ_BYTES)
            if not part:
                self._streams = None
                raise ConnectionError("closed")
            if not parts and first is not None:
                first()
            parts.append(part)
            last = b"".join(parts[-2:])
            if last.endswith(b"\r\n0\r\n\r\n") or (len(parts) == 1 and b"\r\ncontent-length" in part.lower()):  # errors come in one piece
                return b"".join(parts)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()


async def converse(client: Client, conversation: Conversation, until: float, times: Times, since: float, pause: float = 0.0) -> None:
    """Ask until `until`; what ended between `since` and then is counted."""
    drawn = random.Random(conversation.seed)
    if pause:
        await asyncio.sleep(drawn.uniform(0, pause))
    while (began := time.perf_counter()) < until:
        try:
            answer = await client.ask(conversation.next())
        except OSError as trouble:
            times.failed.append(repr(trouble))
            continue
        ended = time.perf_counter()
        if not answer.startswith(b"HTTP/1.1 200"):
            times.failed.append(answer[:300].decode(errors="replace"))
            await asyncio.sleep(0.1)
        elif since <= ended <= until:
            times.seconds.append(ended - began)
        conversation.answered(text_of(answer))
        if pause:
            await asyncio.sleep(drawn.uniform(0, 2 * pause))


def text_of(answer: bytes) -> bytes:
    """What was said, as it stands in the answer's JSON: the content of all deltas."""
    parts = answer.split(b'"content":')
    return b"".join(part.lstrip()[1:].split(b'"', 1)[0] for part in parts[1:] if part.lstrip().startswith(b'"'))


def words(drawn: random.Random, length: int) -> str:
    made = "".join(f" {drawn.choice(_WORDS)}" for _ in range(length // 5))
    return made[1 : length + 1]


def _tool(number: int) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"path": {"type": "string", "description": "Where. " * 20}}}
    return {"type": "function", "function": {"name": f"tool{number}", "description": "Does something with a file. " * 20, "parameters": parameters}}


_WORDS = ("the", "file", "module", "returns", "value", "is", "a", "list", "of", "names", "which", "tests", "import", "class", "self", "error", "path")
