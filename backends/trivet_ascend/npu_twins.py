"""The operations of `npu_ops.py` in plain torch, by the same names and arguments, on any device.

They are what the documents of torch-npu say, computed in float32: reference of the self-test, and what runs
in place of an operation that fails it. Attention also takes what the fused operation refuses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

# Scores of one piece of queries, float32: bounds what attention allocates.
SCORES_BYTES = 64 << 20


def fused_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_ends: Sequence[int],
    seq_lens: Sequence[int],
    mask: Tensor | None,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """As `npu_ops.fused_attention`: gathers the blocks of one sequence after the other.

    The mask is not read. Slots at or past a sequence's length are cut off, whatever they hold.

    Args:
        window: a token sees itself and the window - 1 tokens before it; None sees all.
        soft_cap: scores are cap * tanh(scores / cap) before the mask (Gemma 2 report, section 2).
        slopes: [Hq] float32, ALiBi's (Press et al. 2022); times the distance, added to the scores.
    """
    block_size = key_cache.shape[1]
    out = torch.empty_like(query)
    start = 0
    for index, (end, seq_len) in enumerate(zip(query_ends, seq_lens, strict=True)):
        first_block = 0
        if window is not None:
            first_block = max(0, seq_len - (end - start) + 1 - window) // block_size
        blocks = block_table[index, first_block : -(-seq_len // block_size)].long()
        first_key = first_block * block_size
        keys, values = (
            cache.index_select(0, blocks).flatten(0, 1)[: seq_len - first_key].float()
            for cache in (key_cache, value_cache)
        )
        height = max(1, SCORES_BYTES // (4 * query.shape[1] * max(1, seq_len - first_key)))
        for piece in range(start, end, height):
            stop = min(piece + height, end)
            rows = query[piece:stop].float()
            distance = _distances(seq_len - (end - piece), stop - piece, first_key, seq_len, query.device)
            scores = _scores(rows, keys, scale, soft_cap, slopes, distance, window)
            out[piece:stop] = _weighted(scores, values).to(query.dtype)
        start = end
    return out


def _distances(
    first_query: int, num_queries: int, first_key: int, seq_len: int, device: torch.device
) -> Tensor:
    """[Q, L] position of the query less that of the key."""
    queries = torch.arange(first_query, first_query + num_queries, device=device)
    return queries[:, None] - torch.arange(first_key, seq_len, device=device)


def _scores(
    rows: Tensor,
    keys: Tensor,
    scale: float,
    soft_cap: float | None,
    slopes: Tensor | None,
    distance: Tensor,
    window: int | None,
) -> Tensor:
    """Rows [Q, Hq, D] and keys [L, Hkv, D] -> masked scores [Hkv, G, Q, L]."""
    num_queries, num_heads, head_dim = rows.shape
    num_kv_heads = keys.shape[1]
    grouped = rows.view(num_queries, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    scores = grouped.flatten(1, 2) @ keys.permute(1, 2, 0) * scale
    scores = scores.view(num_kv_heads, num_heads // num_kv_heads, num_queries, -1)
    if soft_cap is not None:
        scores = (scores / soft_cap).tanh() * soft_cap
    if slopes is not None:
        scores = scores - slopes.view(num_kv_heads, -1, 1, 1) * distance
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return scores.masked_fill(hidden, -math.inf)


def _weighted(scores: Tensor, values: Tensor) -> Tensor:
    """Scores [Hkv, G, Q, L] and values [L, Hkv, D] -> [Q, Hq, D]."""
    num_kv_heads, group, num_queries, _ = scores.shape
    out = scores.softmax(-1).flatten(1, 2) @ values.transpose(0, 1)
    return out.view(num_kv_heads, group, num_queries, -1).permute(2, 0, 1, 3).flatten(1, 2)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """As `npu_ops.write_kv`."""
    for source, cache in ((key, key_cache), (value, value_cache)):
        cache.flatten(0, 1).index_copy_(0, slots.long(), source.to(cache.dtype))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `npu_ops.rms_norm` (Zhang and Sennrich 2019)."""
    wide = x.float()
    normed = wide * (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.float()
    return normed.to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As `npu_ops.add_rms_norm`."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """As `npu_ops.rotate` (Su et al. 2021, eq. 34)."""
    wide = x.float()
    if interleaved:
        pairs = wide.reshape(*wide.shape[:-1], -1, 2)
        partner = torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2)
    else:
        low, high = wide.chunk(2, -1)
        partner = torch.cat((-high, low), -1)
    return (wide * cos.float()[:, None] + partner * sin.float()[:, None]).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """As `npu_ops.swiglu` (Shazeer 2020)."""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `npu_ops.quantise_rows`: symmetric, the largest of a row becomes 127."""
    wide = x.float()
    scales = wide.abs().amax(-1) / 127
    safe = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (wide / safe[:, None]).round().clamp(-127, 127).to(torch.int8), scales


def matmul_w8a8(
    x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """As `npu_ops.matmul_w8a8`. Sums of int8 products stay exact in float32 up to 1,024 columns."""
    out = ((x.float() @ weight.float()) * x_scales[:, None] * scales.float()).to(dtype)
    return out if bias is None else out + bias


def matmul_weight_only(
    x: Tensor, weight: Tensor, scales: Tensor, offsets: Tensor | None, group_size: int
) -> Tensor:
    """As `npu_ops.matmul_weight_only`."""
    wide = (unpack_int4(weight) if weight.dtype == torch.int32 else weight).float()
    if group_size:
        scales = scales.repeat_interleave(group_size, 0)
        offsets = None if offsets is None else offsets.repeat_interleave(group_size, 0)
    if offsets is not None:
        wide = wide + offsets.float()
    return (x.float() @ (wide * scales.float())).to(x.dtype)


def pack_int4(values: Tensor) -> Tensor:
    """As `npu_ops.pack_int4`: eight neighbours of a row in one word, the first in the lowest bits."""
    shifts = torch.arange(0, 32, 4, device=values.device)
    nibbles = (values.long() & 15).reshape(*values.shape[:-1], -1, 8)
    words = (nibbles << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def unpack_int4(packed: Tensor) -> Tensor:
    """The inverse of `pack_int4`: int32 [K, N / 8] -> int32 [K, N]."""
    shifts = torch.arange(0, 32, 4, device=packed.device)
    nibbles = (packed[..., None].long() >> shifts) & 15
    return torch.where(nibbles > 7, nibbles - 16, nibbles).flatten(-2).to(torch.int32)
