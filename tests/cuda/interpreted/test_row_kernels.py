"""Norm, rotation, activation and quantised products against float64 and their twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trivet_cuda import twins
from trivet_cuda.kernels.group_matmul import group_matmul
from trivet_cuda.kernels.rms_norm import add_rms_norm, rms_norm
from trivet_cuda.kernels.rope import norm_rope
from trivet_cuda.kernels.swiglu import swiglu
from trivet_cuda.tiles import matmul_splits, matmul_tiles

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
STEP = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of the largest value


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def close(found: Tensor, wanted: Tensor) -> None:
    error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    assert float(error) < STEP[found.dtype]


def test_the_norm_of_rows_with_gaps_between_them(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn((5, 200), generator=generator).to(dtype)[:, :150]
    weight = torch.randn(150, generator=generator)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    close(rms_norm(x, weight, 1e-5, dtype), exact)
    close(twins.rms_norm(x, weight, 1e-5, dtype), exact)


@pytest.mark.parametrize("residual_dtype", DTYPES, ids=str)
def test_the_sum_comes_before_the_norm(
    dtype: torch.dtype, residual_dtype: torch.dtype, generator: torch.Generator
) -> None:
    x = torch.randn((5, 96), generator=generator).to(dtype)
    residual = (torch.randn((5, 96), generator=generator) * 3).to(residual_dtype)
    weight = torch.randn(96, generator=generator)
    found, total = add_rms_norm(x, residual, weight, 1e-5, dtype)
    wanted, twin_total = twins.add_rms_norm(x, residual, weight, 1e-5, dtype)
    assert torch.equal(total, twin_total)
    close(found, wanted)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rope_dim", [64, 40, 16])
@pytest.mark.parametrize("has_norm", [False, True])
def test_heads_are_normed_and_turned(
    interleaved: bool, rope_dim: int, has_norm: bool, generator: torch.Generator
) -> None:
    x = torch.randn((4, 15, 64), generator=generator)[:, :11]  # seven query heads, four KV heads
    angles = torch.rand((4, rope_dim // 2), generator=generator) * 6
    q_weight, k_weight = torch.randn((2, 64), generator=generator)
    weights = (q_weight, k_weight) if has_norm else (None, None)
    arguments = (x, 7, *weights, 1e-5, angles.cos(), angles.sin(), interleaved)
    values = x.double()
    if has_norm:
        values = values * (values.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        values = values * torch.where(torch.arange(11)[:, None] < 7, q_weight, k_weight).double()
    if interleaved:
        pairs = values[..., :rope_dim].unflatten(-1, (-1, 2))
    else:
        pairs = values[..., :rope_dim].unflatten(-1, (2, -1)).transpose(-1, -2)
    turned = (
        torch.view_as_complex(pairs.contiguous())
        * torch.polar(torch.ones(()).double(), angles.double())[:, None]
    )
    turned = torch.view_as_real(turned)
    turned = turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)
    exact = torch.cat((turned, values[..., rope_dim:]), -1)
    close(norm_rope(*arguments), exact)
    close(twins.norm_rope(*arguments), exact)


def test_heads_of_16_bits_are_rounded_once(dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn((3, 6, 32), generator=generator).to(dtype)
    angles = torch.rand((3, 16), generator=generator) * 6
    weights = torch.randn((2, 32), generator=generator)
    arguments = (x, 4, *weights, 1e-5, angles.cos(), angles.sin(), False)
    close(norm_rope(*arguments), twins.norm_rope(*arguments))


@pytest.mark.parametrize("size", [100, 1500])
def test_the_gate_is_applied(dtype: torch.dtype, size: int, generator: torch.Generator) -> None:
    x = (torch.randn((3, 2 * size), generator=generator) * 4).to(dtype)
    gate, up = x.double().chunk(2, -1)
    close(swiglu(x), gate * gate.sigmoid() * up)
    close(twins.swiglu(x), gate * gate.sigmoid() * up)


def quantised(
    num_inner: int, num_columns: int, is_4bit: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Weight, scales, offsets, and the matrix [K, N] in float64."""
    scales = (torch.rand((num_inner // 32, num_columns), generator=generator) * 0.02 + 0.01).half()
    if not is_4bit:
        weight = torch.randint(-127, 128, (num_inner, num_columns), generator=generator, dtype=torch.int8)
        return weight, scales, None, weight.double() * scales.double().repeat_interleave(32, 0)
    offsets = torch.randn((num_inner // 32, num_columns), generator=generator).half()
    nibbles = torch.randint(0, 16, (num_inner, num_columns), generator=generator)
    words = sum(nibbles[j::8] << (4 * j) for j in range(8))
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    matrix = nibbles.double() * scales.double().repeat_interleave(32, 0)
    return words, scales, offsets, matrix + offsets.double().repeat_interleave(32, 0)


@pytest.mark.parametrize("is_4bit", [True, False], ids=["4 bits", "8 bits"])
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(3, 1056, 70), (2, 2112, 40), (20, 192, 130), (1, 64, 64)]
)
def test_a_product_with_a_quantised_matrix(
    dtype: torch.dtype, is_4bit: bool, rows: int, inner: int, columns: int, generator: torch.Generator
) -> None:
    weight, scales, offsets, matrix = quantised(inner, columns, is_4bit, generator)
    x = torch.randn((rows, inner + 8), generator=generator).to(dtype)[:, :inner]
    exact = x.double() @ matrix
    close(group_matmul(x, weight, scales, offsets, 90), exact)
    close(twins.group_matmul(x, weight, scales, offsets, 90), exact)


def test_the_cases_have_products_that_share_k() -> None:
    assert matmul_splits(matmul_tiles(90, 3), 3, 1056, 70) == 4
    assert matmul_splits(matmul_tiles(90, 2), 2, 2112, 40) == 8
    assert matmul_splits(matmul_tiles(90, 1), 1, 64, 64) == 1
