"""Every call of a torch-npu operation that Trivet makes, and nothing else.

The names, keywords and defaults were read from the schemas inside the torch-npu wheels (2.10, 2.13, 2.14) and
are checked against them by `tests/run ascend`. Each function has a twin of the same name and arguments in
`npu_twins.py`: the reference of the self-test, and what runs where an operation fails. Calls go through
`torch.ops.npu`, where they are found whoever defined them: torch-npu, or the tests' emulator.

T tokens, S sequences, Hq query heads, Hkv KV heads, D head size, B blocks of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Right-down causal: the last query of a sequence sees all its keys. The one mode that vllm-ascend runs in
# every phase; others were silently wrong on some stacks (vllm-ascend #15503, #13699).
CAUSAL = 3
CAUSAL_MASK_SIZE = 2048  # the op wants this triangle whatever the lengths are
LAYOUT = "TND"  # sequences end to end, no padding


def fused_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
    mask: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of a ragged batch over the paged cache.

    Args:
        query: [T, Hq, D], contiguous, float16 or bfloat16.
        key_cache: [B, block_size, Hkv, D] of the same dtype; value_cache alike.
        block_table: [S, n] int32 on the device; ids are not checked by the op.
        query_ends: cumulative query lengths, host integers; the last is T.
        seq_lens: tokens in the cache of each sequence, host integers, not cumulative.
        mask: int8 [2048, 2048], 1 above the diagonal.

    Returns:
        [T, Hq, D]
    """
    block_size, num_kv_heads = key_cache.shape[1:3]
    out: Tensor = torch.ops.npu.npu_fused_infer_attention_score(
        query,
        key_cache.flatten(2),
        value_cache.flatten(2),
        atten_mask=mask,
        actual_seq_lengths=query_ends,
        actual_seq_lengths_kv=seq_lens,
        block_table=block_table,
        num_heads=query.shape[1],
        scale=scale,
        input_layout=LAYOUT,
        num_key_value_heads=num_kv_heads,
        sparse_mode=CAUSAL,
        block_size=block_size,
    )[0]
    return out


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store key and value [T, Hkv, D] at slots [T] int32 (block * block_size + offset), each slot once.

    The caches are [B, block_size, Hkv, D]; the op's default mode expects another layout.
    """
    torch.ops.npu.npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, slots, cache_mode="Norm")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[..., size] over the last axis; the weight has x's dtype."""
    normed: Tensor = torch.ops.npu.npu_rms_norm(x, weight, eps)[0]
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual), both [T, size]; all three arguments of one dtype."""
    normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, weight, eps)
    return normed, total


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of x [T, heads, dim]; cos and sin [T, dim] full width, of x's dtype, in [-1, 1]."""
    mode = "interleave" if interleaved else "half"
    turned: Tensor = torch.ops.npu.npu_rotary_mul(x[None], cos[None, :, None], sin[None, :, None], mode)
    return turned[0]


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half of the last axis: [T, 2 n] -> [T, n]."""
    out: Tensor = torch.ops.npu.npu_swiglu(gate_up, -1)
    return out


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """[T, n] in float16 or bfloat16 -> int8 [T, n] and float32 scales [T]."""
    values, scales = torch.ops.npu.npu_dynamic_quant(x)
    return values, scales


def matmul_w8a8(
    x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """int8 x [T, K] @ int8 weight [K, N], times float32 x_scales [T] and scales [N]; plus bias [N].

    Scales are float32: float16 ones pass the shape functions and are refused on the device (161002).
    """
    out: Tensor = torch.ops.npu.npu_quant_matmul(
        x, weight, scales, pertoken_scale=x_scales, bias=None, output_dtype=dtype
    )
    return out if bias is None else out + bias


def matmul_weight_only(
    x: Tensor, weight: Tensor, scales: Tensor, offsets: Tensor | None, group_size: int
) -> Tensor:
    """Product x [T, K] @ ((weight + offsets) * scales): weight int8 [K, N] or `pack_int4`'s.

    Scales and offsets have x's dtype and are [N] where group_size is 0, else [K / group_size, N].
    """
    out: Tensor = torch.ops.npu.npu_weight_quant_batchmatmul(
        x, weight, scales, antiquant_offset=offsets, antiquant_group_size=group_size
    )
    return out


def pack_int4(values: Tensor) -> Tensor:
    """int32 [K, N] of -8 ... 7 -> int32 [K, N / 8], on the device only."""
    packed: Tensor = torch.ops.npu.npu_convert_weight_to_int4pack(values)
    return packed
