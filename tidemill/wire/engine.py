"""Token-in/token-out: the one call the gateway makes to an engine, through the port of its cell agent.

`POST /inference/v1/generate` answers newline-delimited JSON: any number of `Sampled`, the last one with a `finish_reason`. A stream
that ends without one was cut: the tokens that arrived are valid, the rest is sampled elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import aiohttp
import msgspec

from tidemill.wire.http import Client, Refused, Rejected, Unreachable


class Sampling(msgspec.Struct, frozen=True):
    """What the job enforces, and what of the harness's wishes it allows (max_tokens, stop)."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


class Generate(msgspec.Struct, frozen=True):
    request_id: str
    token_ids: tuple[int, ...]  # prompt, and what was sampled so far when a call is resubmitted
    sampling: Sampling
    epoch: int = 0  # of the route the gateway used; an agent in a newer epoch answers 409


class Sampled(msgspec.Struct, frozen=True):
    """A run of sampled tokens. The three lists are equally long."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()  # of the sampled token under the distribution it was sampled from
    versions: tuple[int, ...] = ()  # policy version that computed each token
    finish_reason: str = ""  # "stop" | "length" | "abort"; empty while it goes on


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
        try:
            async with self._session.post(url, data=msgspec.json.encode(request), headers=self.headers(), timeout=timeout) as response:
                if response.status == 409:
                    raise Refused((await response.read())[:500].decode(errors="replace"))
                if 400 <= response.status < 500:
                    raise Rejected(response.status, (await response.read())[:500].decode(errors="replace"))
                if response.status != 200:
                    raise Unreachable(f"{url}: status {response.status}: {(await response.read())[:500].decode(errors='replace')}")
                async for line in response.content:
                    if line.strip():
                        yield msgspec.json.decode(line, type=Sampled)
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise Unreachable(f"{url}: the stream broke ({type(cause).__name__}: {cause})") from cause
