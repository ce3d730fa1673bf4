"""vLLM's OpenAI server with our routes in it: one process for HTTP, one for the engine core."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import serve_http
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.async_utils import cancel_task_threadsafe
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from tidemill.telemetry.logs import Log
from tidemill.wire.engine_control import UpdateWeights
from tidemill.wire.http import Refused, Unreachable
from tidemill.wire.trainer import Nothing
from tidemill_rollout.engine.answers import read, refusal, reply
from tidemill_rollout.engine.control import Control
from tidemill_rollout.engine.generate import PATH, GenerateRoute
from tidemill_rollout.engine.sizing import BLOCK_TOKENS
from tidemill_rollout.engine.span import Span

if TYPE_CHECKING:
    from vllm.config import VllmConfig

log = Log(__name__)

SERVED_NAME = "policy"
CPU_STEP_TOKENS = 512
"""Tokens of one step on a CPU: a long prompt holds up everybody's next token no longer than this takes."""

CORE_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Settings:
    model: Path
    cell: str
    port: int
    max_length: int
    dtype: str
    max_executions: int
    kv_bytes: int
    span: Span


class Engine(AsyncLLM):
    """Knows whether it was told to stop: otherwise its end is a death."""

    told_to_stop = False

    def shutdown(self, timeout: float | None = None) -> None:
        self.told_to_stop = True
        if self.output_handler is not None:
            cancel_task_threadsafe(self.output_handler)  # before the core, or it may take that for a death and log it with a traceback
        super().shutdown(timeout)


async def serve(settings: Settings, listener: socket.socket) -> int:
    """Serve until SIGTERM (0) or until the engine core dies (1); the cell agent restarts what has died."""
    on_cpu = current_platform.is_cpu()
    arguments = vllm_arguments(settings, on_cpu)
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    if on_cpu:
        # Creating the configuration has set "spawn", which would import everything a second time (10 s); nothing here forbids to fork.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        gc.freeze()  # what is loaded now stays shared with the child
    engine = Engine.from_vllm_config(config, usage_context=UsageContext.OPENAI_API_SERVER)
    assert isinstance(engine, Engine)  # vLLM's annotation is wider than what it makes
    try:
        tasks = await engine.get_supported_tasks()
        app = build_app(arguments, tasks, config.model_config)
        await init_app_state(engine, app.state, arguments, tasks)
        app.router.routes[:0] = routes(engine, config, settings, can_free_memory=not on_cpu)
        log.info("engine serves", cell=settings.cell, port=settings.port, kv_bytes=settings.kv_bytes)
        watch = asyncio.create_task(_end_with_the_core(app, engine))
        shutdown = await serve_http(app, sock=listener, host="127.0.0.1", port=settings.port, log_config=None, access_log=False)
    finally:
        engine.shutdown(timeout=0)
    await shutdown
    return int(await watch)


async def _end_with_the_core(app: FastAPI, engine: Engine) -> bool:
    """Did the core die? Then the server ends too. vLLM itself looks every 5 s only.

    Either way the calls in flight end with it; the server would wait for them.
    """
    while not engine.errored and not engine.told_to_stop:
        await asyncio.sleep(CORE_POLL_SECONDS)
    engine.output_processor.propagate_error(EngineDeadError())
    died = not engine.told_to_stop
    if died:
        log.error("the engine core died")
        app.state.server.should_exit = True
    return died


def vllm_arguments(settings: Settings, on_cpu: bool) -> Namespace:
    given = {
        "--model": str(settings.model),
        "--served-model-name": SERVED_NAME,
        "--host": "127.0.0.1",
        "--port": str(settings.port),
        "--dtype": settings.dtype,
        "--max-model-len": str(settings.max_length),
        "--max-num-seqs": str(2 * settings.max_executions),  # sub-agents of one execution call in parallel; the cache is sized by executions
        "--logprobs-mode": "processed_logprobs",  # of the distribution that was sampled from, after temperature and top-p
        "--middleware": "tidemill_rollout.engine.answers.Guard",
        "--worker-extension-cls": "tidemill_rollout.engine.worker.PolicyWeights",
    }
    switches = ["--enable-prefix-caching", "--disable-fastapi-docs", *settings.span.arguments]
    if on_cpu:
        given |= {
            "--kv-cache-memory-bytes": str(settings.kv_bytes),
            "--block-size": str(BLOCK_TOKENS),
            "--max-num-batched-tokens": str(max(CPU_STEP_TOKENS, 2 * settings.max_executions)),
            "--distributed-executor-backend": "uni",
        }
        switches += ["--enforce-eager"]
    else:
        switches += ["--enable-sleep-mode"]
    parser = make_arg_parser(FlexibleArgumentParser())
    arguments: Namespace = parser.parse_args([part for pair in given.items() for part in pair] + switches)
    validate_parsed_serve_args(arguments)
    return arguments


def routes(engine: AsyncLLM, config: VllmConfig, settings: Settings, can_free_memory: bool) -> list[Route]:
    control = Control(engine, settings.cell, can_free_memory)

    async def healthy(_: Request) -> Response:
        await engine.check_health()
        return reply(Nothing())

    async def state(_: Request) -> Response:
        return reply(control.state())

    async def update(request: Request) -> Response:
        order = await read(request, UpdateWeights)
        return order if isinstance(order, Response) else reply(await control.update(order))

    def order(act: Callable[[], Awaitable[object]]) -> Callable[[Request], Awaitable[Response]]:
        async def obey(_: Request) -> Response:
            return reply(await act())

        return obey

    control_routes = {
        "healthy": ("GET", healthy),
        "state": ("GET", state),
        "digest": ("GET", order(control.digest)),
        "pause": ("POST", order(control.pause)),
        "resume": ("POST", order(control.resume)),
        "sleep": ("POST", order(control.sleep)),
        "wake": ("POST", order(control.wake)),
        "weights": ("POST", update),
    }
    return [
        Route(PATH, GenerateRoute(engine, control, config.model_config.max_model_len).answer, methods=["POST"]),
        *(Route(f"/control/v1/{name}", _in_our_shape(act), methods=[method]) for name, (method, act) in control_routes.items()),
    ]


def _in_our_shape(act: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await act(request)
        except Refused as reason:
            return refusal(409, str(reason))
        except Unreachable as trouble:
            return refusal(503, str(trouble))

    return answer
