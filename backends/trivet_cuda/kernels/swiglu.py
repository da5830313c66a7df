"""silu(gate) * up of the two halves of a row (Shazeer 2020); reads both once, writes half."""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def swiglu_kernel(x, out, x_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One row and BLOCK columns a program."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gate = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    active = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * SIZE + columns, (active * up).to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("trivet_cuda::swiglu", mutates_args=())
def swiglu(x: Tensor) -> Tensor:
    """As `twins.swiglu`."""
    num_rows, size = x.shape[0], x.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    if num_rows:
        swiglu_kernel[(num_rows, triton.cdiv(size, BLOCK))](
            x, out, x.stride(0), SIZE=size, BLOCK=BLOCK, num_warps=4
        )
    return out


@swiglu.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1] // 2))
