"""Rotary position embedding of queries and keys (Su et al. 2021, eq. 34), with their norms before it.

Queries and keys stand side by side in the product of the qkv matrix, so one launch turns both; in float32,
rounded once. Moves the heads once in and once out.
"""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.tiles import tile_rows


@triton.jit(do_not_specialize=["num_rows"])
def rope_kernel(
    x, q_weight, k_weight, cos, sin, out, eps, num_rows, x_stride, x_head_stride,
    NUM_HEADS: tl.constexpr, NUM_Q_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Rows are pairs (token, head); of a head (i, i + HALF) turn, or (2 i, 2 i + 1) where interleaved."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    tokens, heads = rows // NUM_HEADS, rows % NUM_HEADS
    pairs = tl.arange(0, BLOCK_HALF)[None, :]
    rest = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]  # what is not turned
    one = pairs
    other = pairs + HALF
    if IS_INTERLEAVED:
        one = 2 * pairs
        other = 2 * pairs + 1
    is_row = rows < num_rows
    is_pair = is_row & (pairs < HALF)
    is_rest = is_row & (rest < HEAD_DIM)
    source = x + tokens * x_stride + heads * x_head_stride
    first = tl.load(source + one, mask=is_pair, other=0.0).to(tl.float32)
    second = tl.load(source + other, mask=is_pair, other=0.0).to(tl.float32)
    others = tl.load(source + rest, mask=is_rest, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(others * others, 1)
        factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        is_q = heads < NUM_Q_HEADS
        first = first * factor * _weight(q_weight, k_weight, one, is_q, is_pair)
        second = second * factor * _weight(q_weight, k_weight, other, is_q, is_pair)
        others = others * factor * _weight(q_weight, k_weight, rest, is_q, is_rest)
    c = tl.load(cos + tokens * HALF + pairs, mask=is_pair, other=0.0)
    s = tl.load(sin + tokens * HALF + pairs, mask=is_pair, other=0.0)
    target = out + rows * HEAD_DIM
    dtype = out.dtype.element_ty
    tl.store(target + one, (first * c - second * s).to(dtype), mask=is_pair)
    tl.store(target + other, (second * c + first * s).to(dtype), mask=is_pair)
    tl.store(target + rest, others.to(dtype), mask=is_rest)


@triton.jit
def _weight(q_weight, k_weight, columns, is_q, inside):
    """[rows, N] the norm's weight of each head."""
    return tl.where(
        is_q,
        tl.load(q_weight + columns, mask=inside & is_q, other=0.0).to(tl.float32),
        tl.load(k_weight + columns, mask=inside & (is_q == 0), other=0.0).to(tl.float32),
    )


@torch.library.custom_op("trivet_cuda::norm_rope", mutates_args=())
def norm_rope(
    x: Tensor,
    num_q_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
) -> Tensor:
    """As `twins.norm_rope`."""
    num_tokens, num_heads, head_dim = x.shape
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=x.dtype, device=x.device)
    if not num_tokens:
        return out
    half, num_rows = cos.shape[-1], num_tokens * num_heads
    block_rows = tile_rows(triton.next_power_of_2(head_dim))
    rope_kernel[(triton.cdiv(num_rows, block_rows),)](
        x, cos if q_weight is None else q_weight, cos if k_weight is None else k_weight, cos, sin, out,
        eps, num_rows, x.stride(0), x.stride(1),
        NUM_HEADS=num_heads, NUM_Q_HEADS=num_q_heads, HEAD_DIM=head_dim, HALF=half,
        BLOCK_ROWS=block_rows, BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(1, head_dim - 2 * half)),
        IS_INTERLEAVED=interleaved, HAS_NORM=q_weight is not None,
        num_warps=4,
    )  # fmt: skip
    return out


@norm_rope.register_fake
def _(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)
