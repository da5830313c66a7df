"""Where the vocabulary is not divisible, every rank has as many rows and the result none too many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from trivet.runners.sharded_weights import Linear, MatrixSlice, Packer, Plain
from trivet.runners.slices import Rank
from trivet.runners.stored_matrix import StoredMatrix
from trivet.weights.index import TensorInfo, WeightIndex
from trivet.weights.reader import TensorReader

CPU = torch.device("cpu")
NUM_RANKS, VOCABULARY, HIDDEN = 2, 5, 4


class OneAfterTheOther:
    """Collectives of ranks that run in turn: the last one's results are those of all."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def sum(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return torch.stack(self.seen).sum(0)

    def concatenate(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        assert len({len(each[0]) for each in self.seen}) == 1, "ranks gather as many logits each"
        return torch.cat(self.seen, -1)


@pytest.fixture
def table(tmp_path: Path) -> StoredMatrix:
    values = np.arange(VOCABULARY * HIDDEN, dtype=np.float32).reshape(VOCABULARY, HIDDEN)
    path = tmp_path / "weights.bin"
    path.write_bytes(values.tobytes())
    info = TensorInfo("embed.weight", values.shape, "f32", str(path), 0, values.nbytes)
    return StoredMatrix(TensorReader(WeightIndex((info,))), "embed.weight", lambda name: None)


def packers(dtype: torch.dtype = torch.float32) -> list[Packer]:
    def lay_out(part: MatrixSlice) -> Plain:
        return Plain(part.float32())

    meeting = OneAfterTheOther()
    return [
        Packer(
            dtype,
            CPU,
            Rank(index, NUM_RANKS),
            meeting,
            lay_out,
            shares_embedding=True,
            vector_dtype=torch.float32,
        )
        for index in range(NUM_RANKS)
    ]


def logits(heads: list[Linear], x: Tensor) -> Tensor:
    return [head.multiply(x) for head in heads][-1]


def test_a_tied_head_gives_the_logits_of_the_whole_table(table: StoredMatrix) -> None:
    heads = []
    for packer in packers():
        embedding = packer.pack("embed", [table], "vocab", None)
        heads.append(packer.pack("head", [table], "vocab", None))
        assert heads[-1] is embedding
    x = torch.ones(1, HIDDEN)
    whole = torch.from_numpy(np.arange(20, dtype=np.float32).reshape(VOCABULARY, HIDDEN))
    assert torch.equal(logits(heads, x), x @ whole.t())


def test_a_padded_table_is_looked_up_as_the_whole(table: StoredMatrix) -> None:
    ids = torch.tensor([4, 0, 3])
    found = [packer.pack("embed", [table], "vocab", None).look_up(ids) for packer in packers()][-1]
    assert found[:, 0].tolist() == [16.0, 0.0, 12.0]


def test_a_bias_is_padded_as_its_head(table: StoredMatrix) -> None:
    bias = torch.tensor([10.0, 20.0, 30.0, 40.0, 50.0])
    heads = [packer.pack("head", [table], "vocab", bias) for packer in packers()]
    assert logits(heads, torch.zeros(1, HIDDEN)).tolist() == [bias.tolist()]


def test_norms_keep_the_bits_of_their_file() -> None:
    """1 + w of Gemma's norms has more than bfloat16 can hold."""
    weight = torch.tensor([1.001, -0.3333])
    (packer, _) = packers(torch.bfloat16)
    vector = packer.pack("norm", [weight], "none", weight)
    assert torch.equal(vector.vector, weight)
    assert torch.equal(vector.bias, weight)
    assert packer.size_bytes == 2 * weight.nbytes
