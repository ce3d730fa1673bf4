"""A chosen root-to-leaf path as the trainer sees it."""

from __future__ import annotations

import msgspec


class Sequence(msgspec.Struct, frozen=True):
    """One path. All lists are as long as `token_ids`; entries of tokens that are not trained are zero.

    `weights` already hold advantage, averaging inside the execution and the step's normaliser (B * N), so that the loss of a
    step is the plain sum over its tokens. See `tidemill_trainer.loss` for the formula.
    """

    execution: str
    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]
    behaviour_logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    weights: tuple[float, ...]
