"""The least that a proxy can do, on aiohttp: take a request, pass it on, pass the stream back. What `bench/gateway.py` compares with.

python -m bench.gateway_bare PORT UPSTREAM_URL
"""

from __future__ import annotations

import asyncio
import io
import sys

import aiohttp
from aiohttp import web

from tidemill.wire.http import serve


async def main(port: int, upstream: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            headers = {"Content-Type": "application/json", "Authorization": request.headers.get("Authorization", "")}
            async with session.post(upstream + request.path_qs, data=io.BytesIO(body), headers=headers) as answer:
                response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]})
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=2**30)
        app.router.add_post("/{tail:.*}", pass_on)
        await serve(app, "127.0.0.1", port)
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
