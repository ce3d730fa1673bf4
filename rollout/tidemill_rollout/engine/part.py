"""The part of an engine on a node that is not its first: workers that the engine core of rank 0 drives, and a health answer for their agent.

Written after vLLM's `serve --headless`. It has not run yet: it needs GPUs on two nodes.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from vllm.entrypoints.cli.serve import run_headless
from vllm.platforms import current_platform

from tidemill_rollout.engine.server import Settings, vllm_arguments


class _Healthy(BaseHTTPRequestHandler):
    """That somebody answers is the answer: it ends with the process."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(settings: Settings, listener: socket.socket) -> int:
    """Until rank 0 ends or SIGTERM."""
    health = HTTPServer(listener.getsockname(), _Healthy, bind_and_activate=False)
    health.socket = listener
    listener.listen()
    threading.Thread(target=health.serve_forever, name="health", daemon=True).start()
    arguments = vllm_arguments(settings, current_platform.is_cpu())
    arguments.headless, arguments.api_server_count = True, 0
    run_headless(arguments)
    return 1  # its end is a death: the agent starts it again
