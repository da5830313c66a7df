"""silu(gate) * up of the two halves of a row (Shazeer 2020); reads both once, writes half."""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.tiles import tile_rows

MAX_BLOCK = 1024


@triton.jit(do_not_specialize=["num_rows"])
def swiglu_kernel(
    x, out, num_rows, x_stride, SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """BLOCK_ROWS rows and BLOCK columns a program."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (rows < num_rows) & (columns < SIZE)
    gate = tl.load(x + rows * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + rows * x_stride + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    active = gate / (1.0 + tl.exp(-gate))
    tl.store(out + rows * SIZE + columns, (active * up).to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("trivet_cuda::swiglu", mutates_args=())
def swiglu(x: Tensor) -> Tensor:
    """As `twins.swiglu`."""
    num_rows, size = x.shape[0], x.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    if num_rows:
        block = min(MAX_BLOCK, triton.next_power_of_2(size))
        rows = tile_rows(block)
        swiglu_kernel[(triton.cdiv(num_rows, rows), triton.cdiv(size, block))](
            x, out, num_rows, x.stride(0), SIZE=size, BLOCK_ROWS=rows, BLOCK=block, num_warps=4
        )
    return out


@swiglu.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1] // 2))
