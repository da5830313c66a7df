"""Products with a matrix in 4 or 8 bits a value and a scale for each 32, as GGUF's q4 and q8 have it.

At few rows the matrix decides: K * N / 2 bytes in 4 bits, plus 4 bytes a group. Values become the type of
the activations in registers. Where rows and columns give few programs, K is split over several, whose
float32 sums are added in a fixed order: no atomics, so that a step gives the same twice.
"""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.tiles import GROUP_SIZE, matmul_splits, matmul_tiles


@triton.jit(do_not_specialize=["num_rows"])
def group_matmul_kernel(
    x, weight, scales, offsets, out, num_rows, x_stride,
    N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NUM_SPLITS: tl.constexpr, IS_4BIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the result and one run of K a program; `out` is [NUM_SPLITS, M, N].

    weight: int32 [K / 8, N], nibble j of a word is row 8 * k + j; or int8 [K, N]. A value is
    weight * scale + offset, offset 0 in 8 bits; scales and offsets are [K / GROUP, N].
    """
    split = tl.program_id(2)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = rows < num_rows
    is_column = columns < N
    steps: tl.constexpr = (K + BLOCK_K * NUM_SPLITS - 1) // (BLOCK_K * NUM_SPLITS)
    start = split * steps * BLOCK_K
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(steps):
        k = start + step * BLOCK_K + tl.arange(0, BLOCK_K)
        is_k = k < K
        x_at = rows.to(tl.int64)[:, None] * x_stride + k[None, :]
        part = tl.load(x + x_at, mask=is_row[:, None] & is_k[None, :], other=0.0)
        groups = (start + step * BLOCK_K) // GROUP + tl.arange(0, BLOCK_K // GROUP)
        is_group = (groups < K // GROUP)[:, None] & is_column[None, :]
        group_at = groups.to(tl.int64)[:, None] * N + columns[None, :]
        scale = tl.load(scales + group_at, mask=is_group, other=0.0).to(tl.float32)
        if IS_4BIT:
            words = (start + step * BLOCK_K) // 8 + tl.arange(0, BLOCK_K // 8)
            is_word = (words < K // 8)[:, None] & is_column[None, :]
            word_at = words.to(tl.int64)[:, None] * N + columns[None, :]
            packed = tl.load(weight + word_at, mask=is_word, other=0)
            shifts = tl.arange(0, 8) * 4
            nibbles = (packed[:, None, :] >> shifts[None, :, None]) & 0xF
            values = tl.reshape(nibbles, [BLOCK_K // GROUP, GROUP, BLOCK_N]).to(tl.float32)
            offset = tl.load(offsets + group_at, mask=is_group, other=0.0).to(tl.float32)
            values = values * scale[:, None, :] + offset[:, None, :]
        else:
            w_at = k.to(tl.int64)[:, None] * N + columns[None, :]
            stored = tl.load(weight + w_at, mask=is_k[:, None] & is_column[None, :], other=0)
            values = tl.reshape(stored, [BLOCK_K // GROUP, GROUP, BLOCK_N]).to(tl.float32)
            values = values * scale[:, None, :]
        dense = tl.reshape(values, [BLOCK_K, BLOCK_N]).to(part.dtype)
        total += tl.dot(part, dense, input_precision=PRECISION)
    out_at = (split.to(tl.int64) * num_rows + rows)[:, None] * N + columns[None, :]
    tl.store(out + out_at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@torch.library.custom_op("trivet_cuda::group_matmul", mutates_args=())
def group_matmul(x: Tensor, weight: Tensor, scales: Tensor, offsets: Tensor | None, arch: int) -> Tensor:
    """As `twins.group_matmul`."""
    num_rows, num_inner = x.shape
    num_columns = weight.shape[1]
    tiles = matmul_tiles(arch, num_rows)
    splits = matmul_splits(tiles, num_rows, num_inner, num_columns)
    dtype = x.dtype if splits == 1 else torch.float32
    out = torch.empty((splits, num_rows, num_columns), dtype=dtype, device=x.device)
    if num_rows:
        grid = (triton.cdiv(num_columns, tiles.block_n), triton.cdiv(num_rows, tiles.block_m), splits)
        group_matmul_kernel[grid](
            x, weight, scales, scales if offsets is None else offsets, out, num_rows, x.stride(0),
            N=num_columns, K=num_inner, GROUP=GROUP_SIZE,
            BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, BLOCK_K=tiles.block_k,
            NUM_SPLITS=splits, IS_4BIT=offsets is not None,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0).to(x.dtype)


@group_matmul.register_fake
def _(x: Tensor, weight: Tensor, scales: Tensor, offsets: Tensor | None, arch: int) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]))
