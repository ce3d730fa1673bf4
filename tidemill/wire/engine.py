"""Token-in/token-out: the one call the gateway makes to an engine, through the port of its cell agent.

`POST /inference/v1/generate` takes a `Generate` in MessagePack and answers newline-delimited JSON: any number of `Sampled`, the last one with a
`finish_reason`. A stream that ends without one was cut: the tokens that arrived are valid, the rest is sampled elsewhere.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator

import aiohttp
import msgspec

from tidemill.trajectory.columns import INT, Ints, settle
from tidemill.wire.http import Client, Refused, Rejected, Unreachable

LONGEST_LINE_BYTES = 2**22
"""An engine sends runs of some tokens. One that never ends its line is not an engine."""


class Sampling(msgspec.Struct, frozen=True):
    """What the job enforces, and what of the harness's wishes it allows (max_tokens, stop)."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


class Generate(msgspec.Struct, frozen=True):
    """In MessagePack: a million tokens are 4 MB and encoded in a millisecond, as JSON 6 MB and 20 ms."""

    request_id: str
    token_ids: Ints  # prompt, and what was sampled so far when a call is resubmitted
    sampling: Sampling
    epoch: int = 0  # of the route the gateway used; an agent in a newer epoch answers 409

    def __post_init__(self) -> None:
        settle(self, token_ids=INT)


read_generate = msgspec.msgpack.Decoder(Generate)


class Sampled(msgspec.Struct, frozen=True):
    """A run of sampled tokens. The three lists are equally long."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # of the sampled token under the distribution it was sampled from
    versions: tuple[int, ...] = ()  # policy version that computed each token
    finish_reason: str = ""  # "stop" | "length" | "abort"; empty while it goes on


def together(runs: list[Sampled]) -> Sampled:
    """One run of several, up to the one that says how it ended."""
    ended = next((position for position, run in enumerate(runs) if run.finish_reason), len(runs) - 1)
    if ended == 0:
        return runs[0]
    runs = runs[: ended + 1]
    return Sampled(
        tuple(token for run in runs for token in run.token_ids),
        tuple(logprob for run in runs for logprob in run.logprobs),
        tuple(version for run in runs for version in run.versions),
        runs[-1].finish_reason,
    )


_read_sampled = msgspec.json.Decoder(Sampled)


class EngineClient(Client):
    """The generate route of one cell."""

    async def generate(self, request: Generate, idle_seconds: float) -> AsyncGenerator[Sampled, None]:
        """Yield runs of tokens as the engine samples them.

        Raises:
            Refused: the cell is in another epoch.
            Unreachable: no connection, a broken stream, or silence for `idle_seconds`.
        """
        url = self.base_url + "/inference/v1/generate"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=idle_seconds)
        headers = self.headers() | {"Content-Type": "application/msgpack"}
        try:
            # Sent piece by piece, so that a long one does not hold up the loop; and held by nobody when it has been sent.
            async with self._session.post(url, data=io.BytesIO(msgspec.msgpack.encode(request)), headers=headers, timeout=timeout) as response:
                if response.status == 409:
                    raise Refused((await response.read())[:500].decode(errors="replace"))
                if 400 <= response.status < 500:
                    raise Rejected(response.status, (await response.read())[:500].decode(errors="replace"))
                if response.status != 200:
                    raise Unreachable(f"{url}: status {response.status}: {(await response.read())[:500].decode(errors='replace')}")
                rest = b""
                async for chunk in response.content.iter_any():
                    lines, newline, rest = (rest + chunk).rpartition(b"\n")
                    if newline:
                        for sampled in _read_sampled.decode_lines(lines):
                            yield sampled
                    if len(rest) > LONGEST_LINE_BYTES:
                        raise Unreachable(f"{url}: a line of more than {LONGEST_LINE_BYTES} bytes")
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise Unreachable(f"{url}: the stream broke ({type(cause).__name__}: {cause})") from cause
