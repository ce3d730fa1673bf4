"""Small random models with a byte-level tokenizer, made in a second: for tests and for trying things out. Every byte sequence is a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAMILIES = ("qwen3", "llama")
"""qwen3: heads with norms, own output matrix. llama: output matrix tied to the embedding, as in SmolLM2."""

REVISION = "1"
"""Part of the cache's folder name: raise it when what is made changes."""

SEED = 0
VOCABULARY = 320  # 256 bytes, the special tokens, and room up to a multiple of 64
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(folder: Path, family: str, dtype: str) -> None:
    """Write model and tokenizer (3.5 MB in float32); the same bytes every time."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    config = _config(family, eos=tokenizer.eos_token_id, pad=tokenizer.pad_token_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def _config(family: str, eos: int, pad: int) -> Any:
    from transformers import LlamaConfig, Qwen3Config

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "initializer_range": 0.08,  # large enough that the distribution is not flat
        "eos_token_id": eos,
        "bos_token_id": None,
        "pad_token_id": pad,
    }
    return Qwen3Config(**shape, tie_word_embeddings=False) if family == "qwen3" else LlamaConfig(**shape, tie_word_embeddings=True)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab={symbol: byte for byte, symbol in enumerate(_byte_symbols())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    padding, start, end = SPECIAL_TOKENS
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, pad_token=padding, additional_special_tokens=[start])
    made.chat_template = CHAT_TEMPLATE
    return made


def _byte_symbols() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2's table), so that a byte's token id is its value."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
