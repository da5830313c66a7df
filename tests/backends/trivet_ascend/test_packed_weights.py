"""Weights on the device: what is read of the file, and what a product gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivet.runners.collectives import Alone
from trivet.runners.sharded_weights import Linear, Packer
from trivet.runners.slices import Rank, Span
from trivet.runners.stored_matrix import StoredMatrix
from trivet.weights.index import TensorInfo, WeightIndex
from trivet.weights.reader import TensorReader
from trivet_ascend import packed_weights
from trivet_ascend.op_table import TWINS, OpTable
from trivet_ascend.packed_weights import Int4, Int8, Layout
from trivet_ascend.weight_kinds import kind_of, matrix_bytes

CPU = torch.device("cpu")


class Files:
    """Matrices in a file, in the formats that are asked for."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "weights.bin"
        self._path.write_bytes(b"")
        self._infos: list[TensorInfo] = []
        self.read: list[str] = []

    def add(
        self, name: str, data: NDArray[np.generic], kind: str, shape: tuple[int, int], heads: int = 0
    ) -> None:
        offset = self._path.stat().st_size
        with self._path.open("ab") as stream:
            stream.write(data.tobytes())
        size = self._path.stat().st_size - offset
        self._infos.append(TensorInfo(name, shape, kind, str(self._path), offset, size, heads))

    def matrix(self, name: str) -> StoredMatrix:
        return StoredMatrix(TensorReader(WeightIndex(tuple(self._infos))), name, self.read.append)

    def whole(self, name: str) -> Tensor:
        return torch.from_numpy(TensorReader(WeightIndex(tuple(self._infos))).float32(name).copy())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def random(rows: int, columns: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def packed(
    files: Files,
    weights: str,
    name: str,
    rank: Rank = Rank(),  # noqa: B008  # frozen
    dtype: str = "bfloat16",
    table: OpTable = TWINS,
) -> Linear:
    kind = getattr(torch, dtype)
    packer = Packer(
        kind, CPU, rank, Alone(), Layout(kind, weights, CPU, table), shares_embedding=weights == "plain"
    )
    shard = {"o": "row", "head": "vocab"}.get(name, "column")
    made: Linear = packer.pack(name, [files.matrix("w")], shard, None)
    assert packer.size_bytes == made.size_bytes
    return made


def q4_rows(kind: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random blocks; the scale of the first is 0."""
    generator = np.random.default_rng(3)
    count = rows * columns // 32
    fields = [generator.uniform(0.01, 0.1, (count, 1)).astype("<f2")]
    if kind == "q4_1":
        fields.append(generator.uniform(-1, 1, (count, 1)).astype("<f2"))
    fields[0][0] = 0
    nibbles = generator.integers(0, 256, (count, 16), dtype=np.uint8)
    return np.concatenate([*(field.view(np.uint8) for field in fields), nibbles], axis=1)


@pytest.mark.parametrize("heads", [0, 2])
def test_a_slice_is_that_part_of_the_whole(files: Files, heads: int) -> None:
    files.add("w", q4_rows("q4_0", 16, 96), "q4_0", (16, 96), heads)
    part = files.matrix("w").float32(Span(4, 12), Span(32, 96))
    assert torch.equal(part, files.whole("w")[4:12, 32:96])
    assert files.read == ["w"]


@pytest.mark.parametrize("kind", ["q4_0", "q4_1"])
def test_four_bits_are_kept_without_loss(files: Files, kind: str) -> None:
    files.add("w", q4_rows(kind, 8, 64), kind, (8, 64))
    groups = files.matrix("w").int4(Span(0, 8), Span(0, 64))
    assert groups.values.min() >= -8
    assert groups.values.max() <= 7
    wide = (groups.values + groups.offsets.repeat(32, 1)) * groups.scales.repeat(32, 1)
    np.testing.assert_allclose(wide, files.whole("w").numpy(), atol=1e-6)


@pytest.mark.parametrize(("weights", "most"), [("plain", 0.004), ("w8a16", 0.012), ("w8a8", 0.02)])
def test_a_product_is_close_to_that_of_the_file(files: Files, weights: str, most: float) -> None:
    files.add("w", random(48, 64), "f32", (48, 64))
    x = torch.from_numpy(random(5, 64, 1)).bfloat16()
    wanted = x.float() @ files.whole("w").t()
    found = packed(files, weights, "o").multiply(x)
    assert found.dtype == torch.bfloat16
    assert float((found.float() - wanted).norm() / wanted.norm()) < most


@pytest.mark.parametrize("kind", ["q4_0", "q4_1"])
def test_a_four_bit_product_is_close_to_that_of_the_file(files: Files, kind: str) -> None:
    files.add("w", q4_rows(kind, 16, 64), kind, (16, 64))
    x = torch.from_numpy(random(5, 64, 1)).half()
    made = packed(files, "w4a16", "down", dtype="float16")
    assert isinstance(made.matrix, Int4)
    wanted = x.float() @ files.whole("w").t()
    assert float((made.multiply(x).float() - wanted).norm() / wanted.norm()) < 0.002


@pytest.mark.parametrize("weights", ["w8a16", "w8a8", "w4a16"])
def test_a_wide_matrix_is_multiplied_in_pieces(
    files: Files, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "PIECE_COLUMNS", 16)
    files.add("w", q4_rows("q4_0", 40, 64), "q4_0", (40, 64))
    widths = []

    def counted(x: Tensor, weight: Tensor, *rest: object) -> Tensor:
        widths.append(weight.shape[1] * (8 if weight.dtype == torch.int32 else 1))
        return TWINS.matmul_weight_only(x, weight, *rest)

    def counted_w8a8(x: Tensor, scales: Tensor, weight: Tensor, *rest: object) -> Tensor:
        widths.append(weight.shape[1])
        return TWINS.matmul_w8a8(x, scales, weight, *rest)

    table = replace(TWINS, matmul_weight_only=counted, matmul_w8a8=counted_w8a8)
    x = torch.from_numpy(random(3, 64, 1)).bfloat16()
    found = packed(files, weights, "down", table=table).multiply(x)
    assert widths == [16, 16, 8]
    wanted = x.float() @ files.whole("w").t()
    assert float((found.float() - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.parametrize(
    ("weights", "name", "formats", "rows", "columns", "kind"),
    [
        ("plain", "layers.0.qkv", ["q4_0"], 64, 64, "plain"),
        ("w8a8", "head", ["bf16"], 64, 64, "w8a16"),
        ("w8a8", "embed", ["bf16"], 64, 64, "plain"),
        ("w8a16", "layers.0.down", ["bf16"], 64, 70_000, "plain"),
        ("w4a16", "layers.0.qkv", ["q4_0", "q4_0", "q6_k"], 64, 64, "plain"),
        ("w4a16", "layers.0.qkv", ["q4_0", "q4_1", "q4_0"], 64, 64, "w4a16"),
        ("w4a16", "head", ["q4_0"], 64, 64, "plain"),
        ("w4a16", "layers.0.o", ["q4_0"], 64, 32, "plain"),
    ],
)
def test_the_kind_of_a_matrix(
    weights: str, name: str, formats: list[str], rows: int, columns: int, kind: str
) -> None:
    assert kind_of(weights, name, formats, rows, columns) == kind


@pytest.mark.parametrize(
    ("weights", "stored"), [("plain", "f32"), ("w8a16", "f32"), ("w8a8", "f32"), ("w4a16", "q4_1")]
)
def test_bytes_are_those_of_the_plan(files: Files, weights: str, stored: str) -> None:
    data = q4_rows("q4_1", 24, 64) if stored == "q4_1" else random(24, 64)
    files.add("w", data, stored, (24, 64))
    kind = kind_of(weights, "down", [stored], 24, 64)
    assert packed(files, weights, "down").size_bytes == matrix_bytes(kind, 24, 64, 2)


def test_ranks_read_their_slices_and_their_products_make_the_whole(files: Files) -> None:
    files.add("w", random(10, 64), "f32", (10, 64))
    x = torch.from_numpy(random(3, 64, 1))
    wanted = x @ files.whole("w").t()
    columns = [packed(files, "plain", "up", Rank(i, 2), "float32").multiply(x) for i in range(2)]
    torch.testing.assert_close(torch.cat(columns, -1), wanted)
    halves = [
        packed(files, "plain", "o", Rank(i, 2), "float32").multiply(x[:, i * 32 : i * 32 + 32])
        for i in range(2)
    ]
    torch.testing.assert_close(sum(halves), wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_int8_matrix_of_zeros_stays_zero(files: Files, dtype: str) -> None:
    """The smallest float16 is 6e-8: a tiny scale would become 0 there, and 0 / 0 no number."""
    rows = np.zeros((8, 32), np.float32)
    rows[1] = 1e-9 if dtype == "float16" else 0
    files.add("w", rows, "f32", (8, 32))
    made = packed(files, "w8a16", "down", dtype=dtype)
    assert isinstance(made.matrix, Int8)
    assert not made.matrix.weight.any()
    assert not made.multiply(torch.ones(1, 32, dtype=getattr(torch, dtype))).any()
