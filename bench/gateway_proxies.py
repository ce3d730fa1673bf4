"""What `bench/gateway.py` starts: the process behind the proxies, and each proxy alone on a core."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import aiohttp
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.gateway_load import Client, words
from tests.ports import free_port
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import GatewayClient, OpenExecution, Route

LITELLM = "1.97.0"
FASTAPI = "0.136.3"  # LiteLLM asks for no version, and does not start with later ones
TOKEN = "bench"
MAX_LENGTH = 4_000_000

_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Proxy:
    process: subprocess.Popen[bytes]
    port: int
    path: str = "/v1/chat/completions"  # {} is the number of a conversation
    key: str = "sk-bench"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, conversation: int) -> Client:
        return Client(self.port, self.path.format(conversation), self.key.format(conversation))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def core_seconds(self) -> float:
        """What all processes have used of the core that the proxy has."""
        core = min(os.sched_getaffinity(self.process.pid))
        line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
        user, nice, system, _, _, irq, soft, steal = (int(field) for field in line.split()[1:9])
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    async def set(self, **values: int) -> None:
        """Settings of the process behind the proxies."""
        text = ",".join(f"{name}={value}" for name, value in values.items())
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}/settings/{text}") as response:
            assert response.status == 200


def direct(behind: Proxy) -> Proxy:
    """No proxy."""
    return Proxy(behind.process, behind.port)


@asynccontextmanager
async def upstream() -> AsyncIterator[Proxy]:
    port = free_port()
    async with _running([sys.executable, "-m", "bench.gateway_upstream", str(port)], port, own_core=False) as process:
        yield Proxy(process, port)


@asynccontextmanager
async def bare(behind: Proxy) -> AsyncIterator[Proxy]:
    port = free_port()
    async with _running([sys.executable, "-m", "bench.gateway_bare", str(port), behind.url], port) as process:
        yield Proxy(process, port)


@asynccontextmanager
async def litellm(behind: Proxy, folder: Path) -> AsyncIterator[Proxy]:
    """Its proxy with one worker, one model, and no logging, keys or database."""
    programs = _litellm_programs()
    port = free_port()
    config = {
        "model_list": [{"model_name": "policy", "litellm_params": {"model": "openai/policy", "api_base": f"{behind.url}/v1", "api_key": "sk-bench"}}],
        "litellm_settings": {"telemetry": False, "set_verbose": False, "drop_params": True},
    }
    (folder / "litellm.json").write_text(json.dumps(config))  # JSON is YAML
    command = [str(programs / "litellm"), "--config", str(folder / "litellm.json"), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    environment = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "NO_PROXY": "*", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    async with _running(command, port, health="/health/liveliness", environment=environment) as process:
        yield Proxy(process, port)


@asynccontextmanager
async def ours(behind: Proxy, folder: Path, executions: int, capacity: int) -> AsyncIterator[Proxy]:
    """A gateway with a cell, and executions 0 to `executions`, each with a key of its own."""
    port = free_port()
    work = folder / f"work-{port}"
    work.mkdir()
    arguments = ["--manifest", str(_manifest(work)), "--workdir", str(work), "--port", str(port), "--conductor-url", behind.url]
    command = [sys.executable, "-m", "tidemill_rollout.gateway", *arguments, "--model", str(_model(folder))]
    async with _running(command, port, environment={"TIDEMILL_TOKEN": TOKEN}) as process, aiohttp.ClientSession() as session:
        client = GatewayClient(f"http://127.0.0.1:{port}", TOKEN, session)
        await client.put_route(Route("cell-0", 1, 0, behind.url, capacity))
        for number in range(executions):
            sampling = Sampling(max_tokens=4096)
            await client.open(OpenExecution(f"e{number}", 1, f"key-{number}", "generic", sampling, time.time() + 36_000, call_seconds=600.0))
        yield Proxy(process, port, "/x/e{}/v1/chat/completions", "key-{}")


@asynccontextmanager
async def _running(
    command: list[str], port: int, *, own_core: bool = True, health: str = "/healthz", environment: dict[str, str] | None = None
) -> AsyncIterator[subprocess.Popen[bytes]]:
    core = min(os.sched_getaffinity(os.getppid()))  # ours is the other one
    pinned = ["taskset", "-c", str(core), *command] if own_core else command
    with tempfile.TemporaryFile() as log:
        process = _start(pinned, {**os.environ, **(environment or {})}, log)
        try:
            async with asyncio.timeout(180):
                while not await asyncio.to_thread(_answers, port, health):
                    if process.poll() is not None:
                        log.seek(0)
                        said = log.read().decode(errors="replace")[-3000:]
                        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
                    await asyncio.sleep(0.1)
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(command: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{port}{path}", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _litellm_programs() -> Path:
    """Where its environment's programs are, which is made where it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidemill"
    folder = cache / f"litellm-{LITELLM}"
    if not (folder / "bin" / "litellm").exists():
        uv = shutil.which("uv") or str(cache / "installer" / "bin" / "uv")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), f"litellm[proxy]=={LITELLM}", f"fastapi=={FASTAPI}"],
            check=True,
        )
    return folder / "bin"


def _model(folder: Path) -> Path:
    """Tokenizer and template of a model with tokens of about four characters."""
    model = folder / "model"
    if model.exists():
        return model
    model.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    letters = random.Random(1)
    made = [" " + "".join(letters.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(4)) for _ in range(2000)]
    text = [words(random.Random(2), 20_000), "".join(made)]
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=1500, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    (model / "chat_template.jinja").write_text(_TEMPLATE)
    return model


def _manifest(folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text(
        "apiVersion: tidemill.dev/v1alpha1\nkind: RLJob\nmetadata: {name: bench}\nspec:\n"
        f"  model: {{source: 'path:/m', dtype: float32, maxLength: {MAX_LENGTH}, tools: Text}}\n  cells: {{count: 2, capacity: 4}}\n"
        "  schedule: {groupsPerStep: 2, rolloutsPerGroup: 2, steps: 1}\n  sampling: {maxTokens: 4096}\n  tasks: {source: 'path:tasks'}\n"
    )
    return path
