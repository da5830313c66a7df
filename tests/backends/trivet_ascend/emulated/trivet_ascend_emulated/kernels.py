"""The operations of torch-npu as its documents describe them, on the CPU: rules first, then the twin.

A rule that is broken is an AssertionError here and a wrong result or a code such as 561002 on a device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trivet_ascend import npu_twins

HALF_TYPES = (torch.float16, torch.bfloat16)
FLOATS = (*HALF_TYPES, torch.float32)
MAX_SIDE = 65_535
MAX_ELEMENTS = 1 << 31
MAX_SEQUENCES = 65_536
MASK_SHAPES = ((2048, 2048), (1, 2048, 2048), (1, 1, 2048, 2048))


def fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    **unused: Any,
) -> tuple[Tensor, Tensor]:
    """Ragged causal attention over a paged cache, the one form that the product calls."""
    defaults = {"pre_tokens": 2147483647, "next_tokens": 2147483647}
    for name, given in unused.items():
        assert given in (None, 0, defaults.get(name)), f"{name}={given} is not emulated"
    assert input_layout == "TND", input_layout
    assert query.dtype in HALF_TYPES, f"attention takes float16 and bfloat16, not {query.dtype}"
    assert query.dtype == key.dtype == value.dtype
    assert all(tensor.is_contiguous() for tensor in (query, key, value)), "contiguous tensors only"
    tokens, heads, head_dim = query.shape
    assert heads == num_heads
    assert heads % num_key_value_heads == 0
    assert heads // num_key_value_heads <= 64
    assert heads <= 256
    assert head_dim % 16 == 0
    assert head_dim <= 512
    assert key.shape == value.shape
    assert key.shape[1:] == (block_size, num_key_value_heads * head_dim)
    assert key.shape[2] <= MAX_SIDE
    assert key.numel() < MAX_ELEMENTS, "2^31 elements of a tensor or more"
    assert query.numel() < MAX_ELEMENTS
    assert block_size % 128 == 0
    assert 128 <= block_size <= 512
    assert sparse_mode == 3, "only the mode that vllm-ascend runs everywhere"
    assert atten_mask is not None
    assert tuple(atten_mask.shape) in MASK_SHAPES
    assert atten_mask.dtype in (torch.bool, torch.int8, torch.uint8)
    _check_triangle(atten_mask.view(2048, 2048))
    _check_lengths(tokens, actual_seq_lengths, actual_seq_lengths_kv, block_table, len(key), block_size)
    assert block_table is not None
    caches = (part.view(*part.shape[:2], num_key_value_heads, head_dim) for part in (key, value))
    out = npu_twins.fused_attention(
        query, *caches, block_table, actual_seq_lengths, actual_seq_lengths_kv, atten_mask, scale
    )
    assert not softmax_lse_flag
    return out, torch.empty(0)


def _check_triangle(mask: Tensor) -> None:
    """1 above the diagonal hides a key; the twin does not read the mask, so it is looked at here."""
    assert mask.is_contiguous()
    assert bool(mask[0, 1:].all()), "the first query sees one key"
    assert not bool(mask[-1].any()), "the last query sees all keys"
    assert not bool(mask.diagonal().any()), "a query sees itself"
    assert bool(mask.diagonal(1).all()), "and not the key after it"


def _check_lengths(
    tokens: int,
    query_ends: list[int] | None,
    kv_lens: list[int] | None,
    block_table: Tensor | None,
    num_blocks: int,
    block_size: int,
) -> None:
    """Query lengths are cumulative, KV lengths of a paged cache are not."""
    assert query_ends is not None
    assert kv_lens is not None
    assert block_table is not None
    assert all(type(length) is int for length in (*query_ends, *kv_lens)), "host integers"
    assert block_table.dtype == torch.int32
    assert block_table.dim() == 2
    assert block_table.is_contiguous()
    assert len(block_table) <= MAX_SEQUENCES
    assert len(block_table) == len(query_ends) == len(kv_lens), "one row of the block table a sequence"
    assert query_ends[-1] == tokens, "cumulative query lengths end with the number of tokens"
    query_lens = [end - start for start, end in zip([0, *query_ends], query_ends, strict=False)]
    for row, (query_len, kv_len) in enumerate(zip(query_lens, kv_lens, strict=True)):
        assert 0 < query_len <= kv_len, "a sequence's KV holds its queries"
        needed = -(-kv_len // block_size)
        assert block_table.shape[1] >= needed
        ids = block_table[row, :needed]
        assert bool(((ids >= 0) & (ids < num_blocks)).all()), "block ids are not checked by the device"


def scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Each slot at most once, and none below 0."""
    assert cache_mode == "Norm", "the default writes another layout"
    assert compress_lens is None
    assert compress_seq_offsets is None
    assert seq_lens is None
    assert key.is_contiguous()
    assert value.is_contiguous()
    assert key_cache.is_contiguous()
    assert value_cache.is_contiguous()
    assert key.dtype == value.dtype == key_cache.dtype == value_cache.dtype
    assert key.dim() == 3
    assert key_cache.dim() == 4
    assert key_cache.shape[2:] == key.shape[1:]
    assert slot_mapping.dtype in (torch.int32, torch.int64)
    assert slot_mapping.shape == (len(key),)
    assert len(slot_mapping.unique()) == len(slot_mapping), "slots are distinct"
    num_slots = key_cache.shape[0] * key_cache.shape[1]
    assert bool(((slot_mapping >= 0) & (slot_mapping < num_slots)).all()), "slots are inside the cache"
    npu_twins.write_kv(key, value, key_cache, value_cache, slot_mapping)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    assert x.dtype in FLOATS
    assert x.dtype == gamma.dtype
    assert x.is_contiguous()
    assert gamma.shape == x.shape[-1:]
    wide = x.float()
    return npu_twins.rms_norm(x, gamma, epsilon), (wide.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()


def add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    assert x1.shape == x2.shape
    assert x1.dtype == x2.dtype == gamma.dtype
    total = x1 + x2
    return *rms_norm(total, gamma, epsilon), total


def rotary_mul(
    x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Layout BSND with cos and sin 1S1D."""
    assert rotary_mode in ("half", "interleave")
    assert rotate is None
    assert x.dim() == r1.dim() == r2.dim() == 4
    assert x.dtype == r1.dtype == r2.dtype
    assert x.dtype in FLOATS
    batch, tokens, heads, size = x.shape
    assert r1.shape == r2.shape == (1, tokens, 1, size)
    assert size % 2 == 0
    assert size < 896
    assert batch < 1000
    assert heads < 1000
    assert float(r1.abs().max()) <= 1, "cos and sin stay within [-1, 1]"
    assert float(r2.abs().max()) <= 1, "cos and sin stay within [-1, 1]"
    return npu_twins.rotate(x[0], r1[0, :, 0], r2[0, :, 0], rotary_mode == "interleave")[None]


def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    assert dim == -1
    assert x.dtype in FLOATS
    assert x.shape[-1] % 2 == 0
    return npu_twins.swiglu(x)


def dynamic_quant(
    x: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    assert (smooth_scales, group_index, dst_type, quant_mode, dst_type_max) == (
        None,
        None,
        None,
        "pertoken",
        0,
    )
    assert x.dtype in HALF_TYPES
    assert x.dim() >= 2
    return npu_twins.quantise_rows(x)


def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype | int | None = None,
    **unused: Any,
) -> Tensor:
    """Scales in float16 pass the wheel's shape function and are refused by CANN (vllm-ascend #12907)."""
    assert all(given is None for given in unused.values())
    assert bias is None
    assert x1.dtype == x2.dtype == torch.int8
    assert scale.dtype == torch.float32
    assert scale.shape == (x2.shape[1],)
    assert pertoken_scale is not None
    assert pertoken_scale.dtype == torch.float32
    assert pertoken_scale.shape == (len(x1),)
    assert max(*x1.shape[1:], *x2.shape) <= MAX_SIDE
    dtype = _dtype(output_dtype)
    assert dtype in HALF_TYPES, "the default output is int8"
    return npu_twins.matmul_w8a8(x1, pertoken_scale, x2, scale, None, dtype)


def _dtype(number: torch.dtype | int | None) -> torch.dtype | None:
    """A schema's `int? output_dtype` carries a dtype as torch numbers them."""
    if not isinstance(number, int):
        return number
    return {5: torch.float16, 15: torch.bfloat16, 6: torch.float32}.get(number)


def weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> Tensor:
    assert (quant_scale, quant_offset, bias, inner_precise, weight_dtype) == (None, None, None, 0, None)
    assert x.dtype in HALF_TYPES
    assert x.dim() == 2
    assert weight.dtype in (torch.int8, torch.int32)
    assert weight.dtype == torch.int8 or weight.is_contiguous()
    columns = weight.shape[1] * (8 if weight.dtype == torch.int32 else 1)
    assert weight.shape[0] == x.shape[1]
    assert max(columns, len(weight)) <= MAX_SIDE
    assert antiquant_scale.dtype == x.dtype
    shape: tuple[int, ...] = (columns,)
    if antiquant_group_size:
        assert antiquant_group_size % 32 == 0
        assert 32 <= antiquant_group_size < len(weight)
        shape = (-(-len(weight) // antiquant_group_size), columns)
    assert antiquant_scale.shape == shape
    if antiquant_offset is not None:
        assert antiquant_offset.dtype == x.dtype
        assert antiquant_offset.shape == shape
    return npu_twins.matmul_weight_only(x, weight, antiquant_scale, antiquant_offset, antiquant_group_size)


def convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    assert weight.dtype == torch.int32
    assert weight.dim() == 2
    assert weight.shape[1] % 8 == 0
    assert bool(((weight >= -8) & (weight <= 7)).all())
    return npu_twins.pack_int4(weight)
