"""RMS norm (Zhang and Sennrich 2019), with the addition to the residual stream before it where there is one.

One pass over a row that registers hold: reads x, the residual and the weight, writes both results. In
separate operations the row would travel through memory five times.
"""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.tiles import row_warps, tile_rows


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x, residual, weight, out, total, eps, num_rows, x_stride,
    SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """One long row a program, or several short ones.

    The sum is rounded to the residual's type before it is normed, as the twin does.
    """
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < num_rows) & (columns < SIZE)
    values = tl.load(x + rows * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + rows * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + rows * SIZE + columns, rounded, mask=inside)
        values = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 1) / SIZE + eps)
    scales = tl.load(weight + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    tl.store(
        out + rows * SIZE + columns, (values * factor[:, None] * scales).to(out.dtype.element_ty), mask=inside
    )


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, *, has_residual: bool
) -> None:
    num_rows, size = x.shape
    if not num_rows:
        return
    block = triton.next_power_of_2(size)
    block_rows = tile_rows(block)
    rms_norm_kernel[(triton.cdiv(num_rows, block_rows),)](
        x, residual, weight, out, total, eps, num_rows, x.stride(0),
        SIZE=size, BLOCK_ROWS=block_rows, BLOCK=block, HAS_RESIDUAL=has_residual, num_warps=row_warps(block),
    )  # fmt: skip


@torch.library.custom_op("trivet_cuda::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """As `twins.rms_norm`."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    _launch(x, x, weight, out, out, eps, has_residual=False)
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
    _launch(x, residual, weight, out, total, eps, has_residual=True)
    return out, total


@add_rms_norm.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=dtype), residual.new_empty(x.shape)
