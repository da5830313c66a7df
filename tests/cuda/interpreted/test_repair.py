"""The interpreter's arithmetic, before anything is concluded from it: it has to be torch's."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def convert_kernel(source, target, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)
    tl.store(target + at, tl.load(source + at).to(target.dtype.element_ty))


@triton.jit
def dot_kernel(a, b, out, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def double_kernel(x, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) + tl.load(x + at))


@triton.jit
def clamp_kernel(x, kept, lost, N: tl.constexpr):  # noqa: N803
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.store(kept + at, tl.clamp(values, -2.0, 2.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(lost + at, tl.clamp(values, -2.0, 2.0))


def converted(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.zeros(source.shape, dtype=dtype)
    convert_kernel[(1,)](source, target, N=source.numel())
    return target


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """NaN patterns differ between machines: any counts as one."""
    values = tensor.float()
    return torch.where(values.isnan(), torch.full_like(values, torch.inf), values)


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_every_pattern_of_16_bits_converts_as_in_torch(source: torch.dtype, target: torch.dtype) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(source)
    assert torch.equal(bits(converted(every, target)), bits(every.to(target)))


@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_every_pattern_of_float8_converts_as_in_torch(target: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(bits(converted(every, target)), bits(every.to(target)))


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_conversion_to_float8_rounds_with_its_carry_and_does_not_saturate(source: torch.dtype) -> None:
    values = torch.cat((torch.linspace(-500, 500, 4095), torch.tensor([127.9]))).to(source)
    in_range = torch.where(values.float().abs() > 464, torch.nan, values.float())
    wanted = in_range.to(torch.float8_e4m3fn)
    assert wanted.float().isnan().any()
    assert torch.equal(bits(converted(values, torch.float8_e4m3fn)), bits(wanted))


def test_float32_rounds_to_bfloat16_half_to_even() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(1)) * 100
    assert torch.equal(converted(values, torch.bfloat16), values.to(torch.bfloat16))


@pytest.mark.parametrize("source", [torch.int8, torch.int32])
def test_whole_numbers_become_bfloat16_by_value(source: torch.dtype) -> None:
    values = torch.arange(-128, 128).to(source)
    assert torch.equal(converted(values, torch.bfloat16), values.to(torch.bfloat16))


def test_a_product_of_bfloat16_adds_in_float32() -> None:
    a, b = (torch.randn(32, 32, generator=torch.Generator().manual_seed(i)).bfloat16() for i in (1, 2))
    out = torch.zeros(32, 32)
    dot_kernel[(1,)](a, b, out, N=32)
    torch.testing.assert_close(out, a.float() @ b.float(), atol=1e-5, rtol=1e-5)


def test_a_clamp_keeps_nan_only_where_it_is_told_to() -> None:
    x = torch.tensor([torch.nan, 5.0, -torch.inf, 1.0])
    kept, lost = torch.zeros(4), torch.zeros(4)
    clamp_kernel[(1,)](x, kept, lost, N=4)
    assert kept.isnan().tolist() == [True, False, False, False]
    assert kept[1:].tolist() == [2.0, -2.0, 1.0]
    assert lost.tolist() == [-2.0, 2.0, -2.0, 1.0]


def test_arithmetic_on_bfloat16_itself_is_refused() -> None:
    with pytest.raises(InterpreterError, match="float32"):
        double_kernel[(1,)](torch.ones(16).bfloat16(), N=16)
