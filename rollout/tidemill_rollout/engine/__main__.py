"""`python -m tidemill_rollout.engine`: the engine of one cell. Everything that can be wrong with the request is said before vLLM is imported."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path

from tidemill.telemetry import logs
from tidemill.wire import trust
from tidemill_rollout.engine.environment import environment
from tidemill_rollout.engine.sizing import BYTES_OF_DTYPE, kv_bytes
from tidemill_rollout.engine.span import Span
from tidemill_rollout.model.folder import ModelError, check


def main() -> int:
    given = _arguments()
    logs.start("engine", **({"job": given.job} if given.job else {}), cell=given.cell)
    log = logs.Log(__name__)
    try:
        trust.from_environment()
        config = check(given.model)
        listener = _listen(given.port)
    except (trust.NoCredential, ModelError, OSError) as problem:
        log.error(str(problem))
        return 2
    os.register_at_fork(after_in_child=listener.close)  # the port is this process's alone: an engine core that is slow to die must not hold it
    os.environ.update(environment(given.threads))

    from tidemill_rollout.engine import part, plugin, server  # imports vllm, which reads the environment

    plugin.register()
    settings = server.Settings(
        model=given.model.resolve(),
        cell=given.cell,
        port=given.port,
        max_length=given.max_length,
        dtype=given.dtype,
        max_executions=given.max_executions,
        kv_bytes=kv_bytes(config, given.dtype, given.max_executions, given.max_length),
        span=Span(given.tensor, given.rank, given.ranks, given.leader),
    )
    if given.rank:
        return part.serve(settings, listener)
    return asyncio.run(server.serve(settings, listener))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tidemill_rollout.engine", description="The policy server of one cell, on the loopback interface.")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--job", default="", help="name of the job, for logs")
    parser.add_argument("--cell", required=True, help="name of the cell, for logs and answers")
    parser.add_argument("--max-length", type=int, required=True, help="longest context in tokens")
    parser.add_argument("--dtype", choices=sorted(BYTES_OF_DTYPE), required=True)
    parser.add_argument("--max-executions", type=int, required=True, help="executions served at once: sizes the key-value cache")
    parser.add_argument("--tensor", type=int, default=1, help="tensor-parallel ranks of the engine (default: %(default)s)")
    parser.add_argument("--rank", type=int, default=0, help="which of the engine's nodes this is; rank 0 serves (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="nodes of the engine (default: %(default)s)")
    parser.add_argument("--leader", default="127.0.0.1", help="address of rank 0")
    parser.add_argument(
        "--threads",
        type=int,
        default=int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))),
        help="threads of one matrix product (default: the cores allowed)",
    )
    return parser.parse_args()


def _listen(port: int) -> socket.socket:
    """Bound at once, so that a taken port is an error before a model is loaded; nobody is accepted before it listens."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as cause:
        raise OSError(f"engine port {port} cannot be used ({cause.strerror}); give another --port") from cause
    return listener


if __name__ == "__main__":
    sys.exit(main())
