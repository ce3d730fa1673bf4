"""A chosen root-to-leaf path as the trainer sees it."""

from __future__ import annotations

import msgspec

from tidemill.trajectory.columns import FLAG, FLOAT, INT, Flags, Floats, Ints, settle


class Sequence(msgspec.Struct, frozen=True):
    """One path. `trained` is as long as `token_ids`; the last three columns are of the trained tokens alone, in their order.

    `weights` already hold advantage, averaging inside the execution and the step's normaliser (B * N), so that the loss of a
    step is the plain sum over its tokens. See `tidemill_trainer.loss` for the formula.
    """

    execution: str
    token_ids: Ints
    trained: Flags
    behaviour_logprobs: Floats
    versions: Ints
    weights: Floats

    def __post_init__(self) -> None:
        settle(self, token_ids=INT, trained=FLAG, behaviour_logprobs=FLOAT, versions=INT, weights=FLOAT)
        if len(self.trained) != len(self.token_ids) or {len(self.behaviour_logprobs), len(self.versions), len(self.weights)} != {self.trained_tokens}:
            raise ValueError(f"execution {self.execution}: the columns of a sequence do not fit together")

    @property
    def trained_tokens(self) -> int:
        return bytes(self.trained).count(1)
