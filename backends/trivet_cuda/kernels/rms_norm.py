"""RMS norm (Zhang and Sennrich 2019), with the addition to the residual stream before it where there is one.

One pass over a row held in registers: reads x, the residual and the weight, writes both results. In separate
operations the row would travel through memory five times.
"""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.tiles import row_warps


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, eps, x_stride,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """One row a program; the sum is rounded to the residual's type before it is normed, as the twin does."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    values = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + row * SIZE + columns, rounded, mask=inside)
        values = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / SIZE + eps)
    normed = values * factor * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + row * SIZE + columns, normed.to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("trivet_cuda::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """As `twins.rms_norm`."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    num_rows, size = x.shape
    if num_rows:
        block = triton.next_power_of_2(size)
        rms_norm_kernel[(num_rows,)](
            x, x, weight, out, out, eps, x.stride(0),
            SIZE=size, BLOCK=block, HAS_RESIDUAL=False, num_warps=row_warps(block),
        )  # fmt: skip
    return out


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("trivet_cuda::add_rms_norm", mutates_args=())
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """As `twins.add_rms_norm`."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    total = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    num_rows, size = x.shape
    if num_rows:
        block = triton.next_power_of_2(size)
        rms_norm_kernel[(num_rows,)](
            x, residual, weight, out, total, eps, x.stride(0),
            SIZE=size, BLOCK=block, HAS_RESIDUAL=True, num_warps=row_warps(block),
        )  # fmt: skip
    return out, total


@add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=dtype), residual.new_empty(x.shape)
