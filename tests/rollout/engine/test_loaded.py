import pytest
import torch
from torch import nn

from tidemill.transfer.checksum import Summed, digest, of_bytes
from tidemill_rollout.engine.loaded import NotReadable, canonical_tensors, loaded_digest


class Fused(nn.Module):
    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(6, 2))
        self.output_partition_sizes = sizes


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))
        self.org_vocab_size = 3


class Policy(nn.Module):
    packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}  # noqa: RUF012  # as vLLM's models declare it

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.embed = Padded()
        self.attention = nn.Module()
        self.attention.qkv_proj = Fused(sizes)
        self.head = self.embed  # tied


def test_fused_matrices_come_apart_padding_is_cut_and_a_tied_matrix_counts_once() -> None:
    tensors = dict(canonical_tensors(Policy([3, 2, 1])))
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "embed.weight": (3, 2),
        "attention.q_proj.weight": (3, 2),
        "attention.k_proj.weight": (2, 2),
        "attention.v_proj.weight": (1, 2),
    }
    assert tensors["attention.v_proj.weight"].tolist() == [[10.0, 11.0]]


def test_the_digest_is_over_the_bytes_that_the_model_computes_with() -> None:
    model = Policy([3, 2, 1])
    before = loaded_digest(model)
    expected = [Summed(name, "float32", tuple(t.shape), of_bytes(t.detach().contiguous().numpy().tobytes())) for name, t in canonical_tensors(model)]
    assert before == digest(expected)
    with torch.no_grad():
        model.attention.qkv_proj.weight[5, 1] += 1e-6
    assert loaded_digest(model) != before


def test_a_parameter_that_was_packed_away_is_an_error() -> None:
    model = Policy([3, 2, 1])
    model.attention.qkv_proj.weight = nn.Parameter(torch.empty(0))
    with pytest.raises(NotReadable, match=r"attention.qkv_proj.weight is empty: vLLM has packed it away"):
        loaded_digest(model)


def test_a_fused_matrix_that_does_not_come_apart_is_an_error() -> None:
    with pytest.raises(NotReadable, match="does not consist of q_proj, k_proj, v_proj"):
        loaded_digest(Policy([3, 2]))
