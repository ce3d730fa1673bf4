"""A kubelet that can do one thing: forward a port of its pods, to a port of this machine. The API server calls it as it calls real ones."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

from tests.cluster.api_server import ApiServer

PROTOCOL = "v4.channel.k8s.io"


@asynccontextmanager
async def node_with_pods(server: ApiServer, namespace: str, pods: dict[str, int]) -> AsyncIterator[None]:
    """A node whose pods have these names; whatever port is asked for, the pod's is the one given here."""
    runner = web.AppRunner(_kubelet(pods), shutdown_timeout=0.5)
    await runner.setup()
    certificate = server.control_plane.authority.issue(f"kubelet-{namespace}", f"system:node:{namespace}", addresses=("127.0.0.1",))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.certificate, certificate.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    node = f"node-{namespace}"
    await asyncio.to_thread(_register, server, namespace, node, runner.addresses[0][1], list(pods))
    try:
        yield
    finally:
        await runner.cleanup()
        await asyncio.to_thread(server.kubectl, "delete", "node", node, "--wait=false")


def _kubelet(pods: dict[str, int]) -> web.Application:
    async def port_forward(request: web.Request) -> web.StreamResponse:
        if "*/*" not in request.headers["Accept"]:
            return web.Response(status=406)
        asked = int(request.query["port"]).to_bytes(2, "little")
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + asked)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", pods[request.match_info["pod"]])
        except OSError as cause:
            await socket.send_bytes(b"\1" + str(cause).encode())
            await socket.close()
            return socket
        answering = asyncio.create_task(_answer(reader, socket))
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[0] == 0:
                writer.write(message.data[1:])
                await writer.drain()
        writer.close()
        answering.cancel()
        return socket

    app = web.Application()
    app.add_routes([web.get("/portForward/{namespace}/{pod}", port_forward)])
    return app


async def _answer(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while data := await reader.read(1 << 15):
        await socket.send_bytes(b"\0" + data)
    await socket.close()


def _register(server: ApiServer, namespace: str, node: str, port: int, pods: list[str]) -> None:
    server.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}))
    status: dict[str, Any] = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    server.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", json.dumps({"status": status}))
    for pod in pods:
        spec = {"nodeName": node, "containers": [{"name": "conductor", "image": "none"}], "tolerations": [{"operator": "Exists"}]}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": namespace}, "spec": spec}
        server.kubectl("create", "-f", "-", input=json.dumps(document))
