"""Products in oneDNN's layout: the same numbers as torch's own, and exactly the planned bytes."""

from __future__ import annotations

import pytest
import torch

from trivet.models.torch_ops import TorchOps
from trivet_cpu.packed_ops import CpuOps, PackedWeight

SHAPES = [(64, 32), (960, 576), (100, 64), (64, 100), (1, 7)]


def _weight(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) / columns**0.5


@pytest.mark.parametrize("tokens", [1, 5, 64])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-5), ("bf16", 2e-2)])
def test_a_packed_product_equals_the_plain_one(
    dtype: str, tolerance: float, rows: int, columns: int, has_bias: bool, tokens: int
) -> None:
    bias = torch.randn(rows) if has_bias else None
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(1))
    results = []
    for ops in (CpuOps(dtype, 64), TorchOps("f32", 64)):
        weight = ops.pack("layers.0.up", [_weight(rows, columns)], "column", bias)
        results.append(ops.linear(x.to(ops.dtype), weight).float())
    torch.testing.assert_close(results[0], results[1], atol=tolerance, rtol=tolerance)


def test_parts_are_joined_by_rows() -> None:
    ops = CpuOps("f32", 64)
    parts = [_weight(64, 32), _weight(128, 32)]
    x = torch.randn(3, 32)
    joined = ops.linear(x, ops.pack("layers.0.qkv", parts, "column"))
    torch.testing.assert_close(joined, x @ torch.cat(parts).T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_weight_takes_the_bytes_of_its_elements(dtype: str, rows: int, columns: int) -> None:
    ops = CpuOps(dtype, 64)
    weight = ops.pack("layers.0.up", [_weight(rows, columns)], "column")
    assert weight.size_bytes == ops.size_bytes == rows * columns * (4 if dtype == "f32" else 2)


def test_even_shapes_are_packed_and_embeddings_are_not() -> None:
    ops = CpuOps("f32", 64)
    assert isinstance(ops.pack("head", [_weight(64, 32)], "vocab"), PackedWeight)
    assert not isinstance(ops.pack("embed", [_weight(64, 32)], "vocab"), PackedWeight)


def test_a_packed_weight_keeps_no_hold_of_its_source() -> None:
    ops = TorchOps("f32", 64)
    source = _weight(4, 8)
    weight = ops.pack("layers.0.up", [source], "column")
    expected = source.clone()
    source.fill_(0)
    torch.testing.assert_close(weight.weight, expected)
