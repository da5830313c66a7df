"""Attention of several new tokens a sequence over the paged cache: prompts, chunks, prefix hits, mixed steps.

A tile's rows are pairs (token, query head of the KV head), so that a short chunk still fills it and any
number of query heads a KV head will do. The host lists the tiles, [sequence, first token]: none is empty.
Work is 4 * D operations a visible pair of query and key, on the tensor cores; keys are read once a tile.
"""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.kernels.scores import LOWEST, attend_tile
from trivet_cuda.tiles import extend_tiles


@triton.jit(do_not_specialize=["table_stride"])
def extend_kernel(
    query, key_cache, value_cache, key_scales, value_scales, block_table, query_starts, seq_lens, tiles, out,
    scale, query_stride, query_head_stride, out_stride,
    block_stride, slot_stride, head_stride, scale_block_stride, scale_slot_stride, table_stride,
    GROUP: tl.constexpr, TILE_TOKENS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IS_INT8: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile and KV head a program. Keys of the new tokens are in the cache already."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    seq = tl.load(tiles + 2 * tile).to(tl.int64)
    first = tl.load(tiles + 2 * tile + 1)
    query_start = tl.load(query_starts + seq)
    query_len = tl.load(query_starts + seq + 1) - query_start
    seq_len = tl.load(seq_lens + seq)
    prefix = seq_len - query_len

    rows, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    new_token = first + rows // GROUP
    query_heads = kv_head * GROUP + rows % GROUP
    is_row = (rows < TILE_TOKENS * GROUP) & (new_token < query_len)
    is_dim = dims < HEAD_DIM
    positions = prefix + new_token
    is_out = is_row[:, None] & is_dim[None, :]
    at = (query_start + new_token).to(tl.int64)
    q_at = at[:, None] * query_stride + query_heads[:, None] * query_head_stride + dims[None, :]
    q = tl.load(query + q_at, mask=is_out, other=0.0)
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    columns = tl.arange(0, BLOCK_N)
    table = block_table + seq * table_stride
    stop = tl.minimum(prefix + first + TILE_TOKENS, seq_len)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(prefix + first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    for tile_start in range(start, stop, BLOCK_N):
        tokens = tile_start + columns
        is_there = tokens < stop
        is_visible = is_there[None, :] & (tokens[None, :] <= positions[:, None])
        if WINDOW > 0:
            is_visible = is_visible & (tokens[None, :] > positions[:, None] - WINDOW)
        highest, total, sums = attend_tile(
            q, key_cache, value_cache, key_scales, value_scales,
            table, tokens, is_there, is_visible, kv_head, dims, is_dim,
            block_stride, slot_stride, head_stride, scale_block_stride, scale_slot_stride,
            highest, total, sums, scale, BLOCK_SIZE, IS_INT8, SOFT_CAP, PRECISION,
        )  # fmt: skip
    sums = sums / tl.where(total > 0, total, 1.0)[:, None]
    out_at = at[:, None] * out_stride + query_heads[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + out_at, sums.to(out.dtype.element_ty), mask=is_out)


@torch.library.custom_op("trivet_cuda::extend_attention", mutates_args=())
def extend_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    block_table: Tensor,
    query_starts: Tensor,
    seq_lens: Tensor,
    tiles: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    arch: int,
) -> Tensor:
    """As `twins.extend_attention`."""
    num_tokens, num_heads, head_dim = query.shape
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if not len(tiles):
        return out
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    shape = extend_tiles(arch, head_dim, group, query.dtype, key_cache.dtype, has_window=window > 0)
    extend_kernel[(len(tiles), num_kv_heads)](
        query, key_cache, value_cache,
        key_cache if key_scales is None else key_scales,
        value_cache if value_scales is None else value_scales,
        block_table, query_starts, seq_lens, tiles, out,
        scale, query.stride(0), query.stride(1), out.stride(0),
        key_cache.stride(0), key_cache.stride(1), key_cache.stride(2),
        block_size * num_kv_heads, num_kv_heads, block_table.stride(0),
        GROUP=group, TILE_TOKENS=shape.tile_tokens, BLOCK_SIZE=block_size, HEAD_DIM=head_dim,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)), BLOCK_M=shape.block_m, BLOCK_N=shape.block_n,
        IS_INT8=key_cache.dtype == torch.int8, WINDOW=window, SOFT_CAP=soft_cap,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    return out


@extend_attention.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)
