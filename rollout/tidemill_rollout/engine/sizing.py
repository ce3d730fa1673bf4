"""How much key-value cache an engine needs, from config.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BLOCK_TOKENS = 32
"""vLLM's CPU attention wants multiples of 32; small blocks waste least."""

BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2}


def kv_bytes_per_token(config: Mapping[str, Any], dtype: str) -> int:
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * BYTES_OF_DTYPE[dtype])


def kv_bytes(config: Mapping[str, Any], dtype: str, executions: int, max_length: int) -> int:
    """Room for `executions` contexts of full length, and the one block that vLLM keeps for itself."""
    blocks = executions * -(-max_length // BLOCK_TOKENS) + 1
    return blocks * BLOCK_TOKENS * kv_bytes_per_token(config, dtype)
