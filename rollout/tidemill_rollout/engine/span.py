"""How an engine is spread over devices and nodes. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    tensor: int = 1
    rank: int = 0
    ranks: int = 1
    leader: str = "127.0.0.1"

    @property
    def arguments(self) -> tuple[str, ...]:
        """vLLM's. Nothing for one device: then it chooses its executor as it always did."""
        tensor = ("--tensor-parallel-size", str(self.tensor)) if self.tensor > 1 else ()
        if self.ranks == 1:
            return tensor
        return (*tensor, "--nnodes", str(self.ranks), "--node-rank", str(self.rank), "--master-addr", self.leader)
