import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import psutil

from tests.engines import Publisher, start_engine, tiny_model
from tidemill.wire.engine_control import EngineControl


async def test_an_engine_fresh_from_a_folder_has_the_digest_of_a_snapshot_and_its_core_dies_with_it() -> None:
    model = tiny_model("llama", "bfloat16")  # fused matrices, a tied output matrix, another dtype
    engine = start_engine(model, cell="cell-2", dtype="bfloat16")
    try:
        publisher = Publisher(model)
        published = publisher.snapshot(0)
        async with aiohttp.ClientSession() as session:
            control = EngineControl(engine.url, engine.token, session)
            assert await control.digest() == published.digest
            publisher.perturb(seed=5)
            changed = publisher.snapshot(1)
            assert (await control.update_weights(changed)).state.digest == await control.digest() == changed.digest != published.digest
        publisher.close()
        children = psutil.Process(engine.process.pid).children(recursive=True)
        assert children
        engine.process.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=5)
        assert not alive
    finally:
        engine.stop()


def test_a_broken_model_folder_is_named_with_what_is_wrong_before_vllm_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0")
    started = time.monotonic()
    code, said = _run(tmp_path, port=1)
    assert code == 2
    assert f"model folder {tmp_path}: model.safetensors is not a safetensors file; there is no tokenizer" in said
    assert time.monotonic() - started < 10


def test_a_taken_port_is_an_error_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = _run(tiny_model(), port)
    assert code == 2
    assert f"engine port {port} cannot be used (Address already in use); give another --port" in said


def test_without_the_token_of_the_job_the_engine_does_not_start() -> None:
    code, said = _run(tiny_model(), port=1, token="")
    assert code == 2
    assert "TIDEMILL_TOKEN is not set" in said


def _run(model: Path, port: int, token: str = "t") -> tuple[int, str]:
    command = [sys.executable, "-m", "tidemill_rollout.engine", "--model", str(model), "--port", str(port), "--cell", "cell-1"]
    command += ["--max-length", "64", "--dtype", "float32", "--max-executions", "1"]
    done = subprocess.run(command, env={**os.environ, "TIDEMILL_TOKEN": token}, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr
