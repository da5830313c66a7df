"""Attention of one query a sequence over the paged cache, with its keys split over programs (Flash-Decoding).

Reads every key and value of the batch once: 2 * sum(seq_lens) * Hkv * D values, at 2 * G operations each, so
memory decides. A lone long sequence would keep Hkv programs busy; split, it keeps Hkv * num_splits busy.
The number of splits never depends on lengths, which only the device knows in a replayed graph.
"""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.kernels.scores import LOWEST, attend_tile
from trivet_cuda.tiles import decode_tiles


@triton.jit(do_not_specialize=["table_stride"])
def decode_kernel(
    query, key_cache, value_cache, key_scales, value_scales, block_table, seq_lens, out, partial, partial_lse,
    scale, query_stride, query_head_stride, out_stride,
    block_stride, slot_stride, head_stride, scale_block_stride, scale_slot_stride, table_stride,
    GROUP: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, IS_INT8: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One sequence, KV head and split a program: all query heads of the KV head, a run of its keys."""
    seq, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    num_kv_heads = tl.num_programs(1)
    seq_len = tl.load(seq_lens + seq)
    first_key = 0
    if WINDOW > 0:
        first_key = tl.maximum(seq_len - WINDOW, 0)
    tiles_per_split = tl.cdiv(tl.cdiv(seq_len - first_key, BLOCK_N), NUM_SPLITS)
    start = first_key + split * tiles_per_split * BLOCK_N
    stop = tl.minimum(start + tiles_per_split * BLOCK_N, seq_len)

    heads, dims = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    is_dim = dims < HEAD_DIM
    is_out = (heads < GROUP)[:, None] & is_dim[None, :]
    query_heads = kv_head * GROUP + heads
    q_at = seq * query_stride + query_heads[:, None] * query_head_stride + dims[None, :]
    q = tl.load(query + q_at, mask=is_out, other=0.0)
    highest = tl.full([BLOCK_H], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    columns = tl.arange(0, BLOCK_N)
    table = block_table + seq * table_stride
    for tile in range(start, stop, BLOCK_N):
        tokens = tile + columns
        is_there = tokens < stop
        highest, total, sums = attend_tile(
            q, key_cache, value_cache, key_scales, value_scales,
            table, tokens, is_there, is_there[None, :], kv_head, dims, is_dim,
            block_stride, slot_stride, head_stride, scale_block_stride, scale_slot_stride,
            highest, total, sums, scale, BLOCK_SIZE, IS_INT8, SOFT_CAP, PRECISION,
        )  # fmt: skip
    divisor = tl.where(total > 0, total, 1.0)
    sums = sums / divisor[:, None]
    if NUM_SPLITS == 1:
        out_at = seq * out_stride + query_heads[:, None] * HEAD_DIM + dims[None, :]
        tl.store(out + out_at, sums.to(out.dtype.element_ty), mask=is_out)
    else:
        lse = tl.where(total > 0, highest + tl.log2(divisor), float("-inf"))
        row = (seq * num_kv_heads * GROUP + query_heads) * NUM_SPLITS + split
        tl.store(partial + row[:, None] * HEAD_DIM + dims[None, :], sums, mask=is_out)
        tl.store(partial_lse + row, lse, mask=heads < GROUP)


@triton.jit
def reduce_kernel(
    partial, partial_lse, out, out_stride,
    NUM_SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
    NUM_HEADS: tl.constexpr,
):  # fmt: skip
    """Weigh the splits of BLOCK_H heads of one sequence by their share of the softmax.

    An empty split has the logarithm -inf and no share; a sequence of length 0 (padding) gives zeros.
    """
    seq = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, BLOCK_D)
    is_head = heads < NUM_HEADS
    is_out = is_head[:, None] & (dims < HEAD_DIM)[None, :]
    rows = (seq * NUM_HEADS + heads) * NUM_SPLITS
    highest = tl.full([BLOCK_H], float("-inf"), tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        highest = tl.maximum(highest, tl.load(partial_lse + rows + split, mask=is_head, other=float("-inf")))
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.zeros([BLOCK_H], tl.float32)
    sums = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        share = tl.exp2(tl.load(partial_lse + rows + split, mask=is_head, other=float("-inf")) - highest)
        at = (rows + split)[:, None] * HEAD_DIM + dims[None, :]
        sums += tl.load(partial + at, mask=is_out, other=0.0) * share[:, None]
        total += share
    sums = sums / tl.where(total > 0, total, 1.0)[:, None]
    out_at = seq * out_stride + heads[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + out_at, sums.to(out.dtype.element_ty), mask=is_out)


@torch.library.custom_op("trivet_cuda::decode_attention", mutates_args=())
def decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    num_splits: int,
    arch: int,
) -> Tensor:
    """As `twins.decode_attention`."""
    num_seqs, num_heads, head_dim = query.shape
    out = torch.empty((num_seqs, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if not num_seqs:
        return out
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    tiles = decode_tiles(arch, head_dim, query.dtype, key_cache.dtype)
    partial = lse = out
    if num_splits > 1:
        rows = (num_seqs, num_heads, num_splits)
        partial = torch.empty((*rows, head_dim), dtype=torch.float32, device=query.device)
        lse = torch.empty(rows, dtype=torch.float32, device=query.device)
    block_d = max(16, triton.next_power_of_2(head_dim))
    decode_kernel[(num_seqs, num_kv_heads, num_splits)](
        query, key_cache, value_cache,
        key_cache if key_scales is None else key_scales,
        value_cache if value_scales is None else value_scales,
        block_table, seq_lens, out, partial, lse,
        scale, query.stride(0), query.stride(1), out.stride(0),
        key_cache.stride(0), key_cache.stride(1), key_cache.stride(2),
        block_size * num_kv_heads, num_kv_heads, block_table.stride(0),
        GROUP=group, NUM_SPLITS=num_splits, BLOCK_SIZE=block_size, HEAD_DIM=head_dim, BLOCK_D=block_d,
        BLOCK_H=max(16, triton.next_power_of_2(group)), BLOCK_N=tiles.block_n,
        IS_INT8=key_cache.dtype == torch.int8, WINDOW=window, SOFT_CAP=soft_cap,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    if num_splits > 1:
        block_h = min(8, triton.next_power_of_2(num_heads))
        reduce_kernel[(num_seqs, triton.cdiv(num_heads, block_h))](
            partial, lse, out, out.stride(0),
            NUM_SPLITS=num_splits, HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_H=block_h, NUM_HEADS=num_heads,
            num_warps=4,
        )  # fmt: skip
    return out


@decode_attention.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)
