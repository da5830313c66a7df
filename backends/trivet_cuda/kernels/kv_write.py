"""Stores keys and values of a step in the paged cache; moves 2 * T * Hkv * D values once in and once out."""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from trivet_cuda.tiles import tile_rows


@triton.jit(do_not_specialize=["num_rows"])
def kv_write_kernel(
    key, value, key_cache, value_cache, key_scales, value_scales, slots, num_rows,
    key_stride, key_head_stride, value_stride, value_head_stride,
    slot_stride, head_stride, scale_slot_stride,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
    IS_INT8: tl.constexpr, IS_FP8: tl.constexpr,
):  # fmt: skip
    """Rows are pairs (token, head). A slot of -1 is padding and is not written.

    What is not a number stays so in every type: the sequence is then known to have failed. By default a clamp
    and a maximum on a card leave NaN out.
    """
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    tokens, heads = (rows // NUM_HEADS).to(tl.int64), rows % NUM_HEADS
    slot = tl.load(slots + tokens, mask=rows < num_rows, other=-1).to(tl.int64)
    is_real = slot >= 0
    dims = tl.arange(0, BLOCK_D)[None, :]
    inside = is_real[:, None] & (dims < HEAD_DIM)
    k_at = (tokens * key_stride + heads * key_head_stride)[:, None] + dims
    v_at = (tokens * value_stride + heads * value_head_stride)[:, None] + dims
    k = tl.load(key + k_at, mask=inside, other=0.0)
    v = tl.load(value + v_at, mask=inside, other=0.0)
    at = (slot * slot_stride + heads * head_stride)[:, None] + dims
    if IS_INT8:
        k, k_scale = _quantised(k.to(tl.float32))
        v, v_scale = _quantised(v.to(tl.float32))
        scale_at = slot * scale_slot_stride + heads
        tl.store(key_scales + scale_at, k_scale, mask=is_real)
        tl.store(value_scales + scale_at, v_scale, mask=is_real)
    elif IS_FP8:  # e4m3 has no infinity: what is beyond its range becomes its largest value
        k = tl.clamp(k.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
        v = tl.clamp(v.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(key_cache + at, k.to(key_cache.dtype.element_ty), mask=inside)
    tl.store(value_cache + at, v.to(value_cache.dtype.element_ty), mask=inside)


@triton.jit
def _quantised(x):
    """Rows in float32 to whole numbers from -127 to 127 and a scale a row; halves away from zero.

    The scale of a row that holds infinity or NaN is NaN.
    """
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-8) / 127.0 + tl.sum(x * 0.0, 1)
    ratio = x / scale[:, None]
    return tl.where(ratio >= 0, tl.floor(ratio + 0.5), tl.ceil(ratio - 0.5)), scale


@torch.library.custom_op(
    "trivet_cuda::write_kv", mutates_args=("key_cache", "value_cache", "key_scales", "value_scales")
)
def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    slots: Tensor,
) -> None:
    """As `twins.write_kv`."""
    if not len(key):
        return
    num_heads, head_dim = key.shape[1:]
    is_int8 = key_cache.dtype == torch.int8
    num_rows, block_d = len(key) * num_heads, triton.next_power_of_2(head_dim)
    block_rows = tile_rows(block_d)
    kv_write_kernel[(triton.cdiv(num_rows, block_rows),)](
        key, value, key_cache, value_cache,
        key_cache if key_scales is None else key_scales,
        value_cache if value_scales is None else value_scales,
        slots, num_rows,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        key_cache.stride(1), key_cache.stride(2), num_heads,
        NUM_HEADS=num_heads, HEAD_DIM=head_dim,
        BLOCK_ROWS=block_rows, BLOCK_D=block_d,
        IS_INT8=is_int8, IS_FP8=key_cache.dtype == torch.float8_e4m3fn,
        num_warps=4,
    )  # fmt: skip


@write_kv.register_fake
def _(*_: object) -> None:
    return None
