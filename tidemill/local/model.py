"""The initial weights of a local job, as a Hugging Face folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tidemill.api import RLJob
from tidemill.local.memory import Footprint
from tidemill.local.parent import die_with_parent

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class ModelUnavailable(Exception):
    """The model cannot be prepared. The message says what is missing."""


def prepare_model(job: RLJob, log_file: Path) -> Path:
    """Fetch or convert `spec.model.source` into a folder with config, tokenizer and safetensors; instant when that was done before.

    Raises:
        ModelUnavailable: with the reason of the process that does it (torch is not loaded into the runner).
    """
    spec = job.spec.model
    argv = [sys.executable, "-m", "tidemill_rollout.model", "--source", spec.source, "--dtype", spec.dtype]
    with log_file.open("ab") as log:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, preexec_fn=die_with_parent)
        log.write(done.stderr)
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        where = f"spec.model.source {spec.source}: "
        raise ModelUnavailable(where + reason.removeprefix(where))
    return Path(done.stdout.decode().strip().splitlines()[-1])


def footprint(job: RLJob, model: Path) -> Footprint:
    """What the job will need, from the sizes of the prepared model."""
    spec, config = job.spec, json.loads((model / "config.json").read_text())
    stored = sum(f.stat().st_size for f in model.glob("*.safetensors"))
    parameters = stored // _DTYPE_BYTES.get(config.get("dtype") or config.get("torch_dtype") or spec.model.dtype, 4)
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 2 * config["num_hidden_layers"] * heads * head_size * _DTYPE_BYTES[spec.model.dtype]
    return Footprint(
        weight_bytes=parameters * _DTYPE_BYTES[spec.model.dtype],
        parameters=parameters,
        cells=spec.cells.count,
        standalone=spec.cells.standalone.replicas,
        kv_bytes=token_bytes * spec.model.max_length * spec.cells.capacity,
    )
