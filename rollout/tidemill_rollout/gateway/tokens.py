"""The tokenizer of one model folder: text to tokens and back, where text that only looks like a special token stays text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from tidemill_rollout.gateway.template import BrokenModelFolder

_OPEN, _CLOSE = "\ue000", "\ue001"
_GUARDED = re.compile(f"{_OPEN}([0-9]{{1,6}}){_CLOSE}")
"""Stands for text of a message that looks like a special token: a file that holds "<|im_end|>" ends nobody's turn."""

_SURROGATES = re.compile("[\ud800-\udfff]")
"""Half a character, as JSON escapes can write it: no tokenizer takes it."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")


class Tokens:
    def __init__(self, folder: Path) -> None:
        self._tokenizer = _tokenizer(folder)
        self._literal = _tokenizer(folder)  # to it, special tokens are text like any other
        self._literal.encode_special_tokens = True
        self._byte_level = "ByteLevel" in repr(self._tokenizer.decoder)
        self.added = {number: token.content for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        special = {number: token.content for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        self.special_ids = frozenset(special)
        self._meant = [*special.values(), _OPEN]  # by the number in a guard
        self._looks_special = re.compile("|".join(map(re.escape, sorted(self._meant, key=len, reverse=True))))

    def guard(self, text: str) -> str:
        """What to put into a template for the text of a message."""
        return self._looks_special.sub(lambda found: f"{_OPEN}{self._meant.index(found[0])}{_CLOSE}", text)

    def encode(self, text: str) -> list[int]:
        """Of text that a template made around guarded messages."""
        ids: list[int] = []
        for number, part in enumerate(_GUARDED.split(_SURROGATES.sub("\ufffd", text))):
            if number % 2:  # what a guard stands for
                ids += self._literal.encode(self._meant[int(part) % len(self._meant)], add_special_tokens=False).ids
            elif part:
                ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special)

    def number(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def bytes_of(self, number: int) -> bytes:
        """What one token stands for; several may make up one character."""
        token = self._tokenizer.id_to_token(number) or ""
        if number in self.added:
            return token.encode()
        if found := _BYTE.fullmatch(token):
            return bytes([int(found[1], 16)])
        if self._byte_level and all(character in _BYTE_LEVEL for character in token):
            return bytes(_BYTE_LEVEL[character] for character in token)
        return self.decode([number]).encode()


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as cause:  # the library raises nothing narrower
        raise BrokenModelFolder(f"model folder {folder}: cannot read {path.name}: {cause}") from cause
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _byte_level() -> dict[str, int]:
    """The characters by which byte-level vocabularies write bytes: printable ones stand for themselves, the others follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(256)}


_BYTE_LEVEL = _byte_level()
