"""`python -m tidemill_rollout.gateway`: the gateway of one job."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sqlite3
import sys
from pathlib import Path

from tidemill.api import InvalidManifest, load_rljob
from tidemill.telemetry import logs
from tidemill.wire.shards import addresses
from tidemill.wire.trust import NoCredential, from_environment
from tidemill_rollout.gateway.process import Settings, running
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.template import BrokenModelFolder

log = logs.Log(__name__)


def main() -> int:
    arguments = _arguments()
    logs.start("gateway")
    try:
        credential = from_environment()
        job = load_rljob(arguments.manifest)
        logs.start("gateway", job=job.metadata.name)
        spec = job.spec
        renderer = Renderer(arguments.model, spec.model.tools)
        settings = Settings(
            journal=arguments.workdir / f"gateway-{arguments.number}.db",
            host=arguments.host,
            port=arguments.port,
            socket=arguments.socket,
            conductor_url=arguments.conductor_url,
            credential=credential,
            max_length=spec.model.max_length,
            call_seconds=spec.timeouts.call_seconds,
            gateways=addresses(arguments.gateway_url),
            number=arguments.number,
            job=job.metadata.name,
        )
        return asyncio.run(_serve(settings, renderer))
    except (NoCredential, InvalidManifest, BrokenModelFolder, OSError, sqlite3.Error) as cause:
        log.error("the gateway can not start", reason=str(cause), workdir=str(arguments.workdir), port=arguments.port, socket=str(arguments.socket))
        return 2


async def _serve(settings: Settings, renderer: Renderer) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings, renderer) as gateway:
        log.info("gateway serves", url=gateway.url, socket=str(settings.socket), template_keeps_prefix=renderer.keeps_prefix)
        asked = asyncio.create_task(stop.wait())
        await asyncio.wait({asked, gateway.failure}, return_when=asyncio.FIRST_COMPLETED)
        if gateway.failure.done():
            log.error("the journal's writer died", reason=repr(gateway.failure.exception()))
            return 1
    log.info("gateway stopped")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tidemill_rollout.gateway", description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="the job")
    parser.add_argument("--workdir", type=Path, required=True, help="where the journal lies")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 in a pod (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--socket", type=Path, help="Unix socket for sandboxes")
    parser.add_argument("--conductor-url", required=True)
    parser.add_argument("--gateway-url", default="", help="of all gateways of the job, this one's too, with commas between; left out for one alone")
    parser.add_argument("--number", type=int, default=0, help="of this gateway among them, from 0 (default: %(default)s)")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder: tokenizer and chat template")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
