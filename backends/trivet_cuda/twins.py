"""Every kernel in plain torch: the reference of the self-test, and what runs where a kernel fails.

T tokens, S sequences, Hq query heads, Hkv KV heads, D head size, B blocks of the cache. Arithmetic is in
float32 and rounded once, as in the kernels; with `exact` it is in float64 and not rounded, for the whole
self-test. `arch` and `num_splits` choose tiles of a kernel and change no result.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from trivet_cuda.tiles import GROUP_SIZE

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
# At once, of which a few live side by side; the plan has no part of its own for a twin.
MAX_SCORES = 1 << 22  # 16 MiB in float32
MAX_KEYS = 1 << 11  # of one sequence: 8 MiB of keys in float32 with 8 heads of 128
MAX_VALUES = 1 << 22  # of rows, or of a quantised matrix: 16 MiB in float32


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    slots: Tensor,
) -> None:
    """Store keys and values [T, Hkv, D] at slots [T], block * block_size + offset; -1 is not written.

    Caches are [B, block_size, Hkv, D] of key's dtype, of float8 e4m3 or of int8; int8 has scales
    [B, block_size, Hkv] in float32, the others None. In float8 what is beyond 448, infinity too, becomes 448
    of its sign and NaN stays NaN; in int8 the scale of a head that holds either is NaN.
    """
    for new, cache, scales in ((key, key_cache, key_scales), (value, value_cache, value_scales)):
        stored, scale = new, None
        if cache.dtype == torch.int8:
            values = new.float()
            scale = values.abs().amax(-1).clamp(min=1e-8) / 127 + (values * 0).sum(-1)
            ratio = values / scale[..., None]
            stored = torch.where(ratio >= 0, (ratio + 0.5).floor(), (ratio - 0.5).ceil()).to(torch.int8)
        elif cache.dtype == FP8:
            stored = new.float().clamp(-FP8_MAX, FP8_MAX).to(FP8)
        _put(stored.to(cache.dtype), cache, slots)
        if scale is not None and scales is not None:
            _put(scale, scales, slots)


def _put(new: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Without a boolean mask, which would wait for the device: padding writes back what slot 0 holds."""
    flat = cache.view(-1, *cache.shape[2:])
    flat = flat.view(torch.uint8) if flat.dtype == FP8 else flat
    new = new.view(torch.uint8) if new.dtype == FP8 else new
    is_real = (slots >= 0).view(-1, *(1,) * (new.dim() - 1))
    first = flat[:1].clone()
    at = slots.clamp(min=0).long()
    # Slot 0 is scratch: whichever of several writes to it wins, nobody reads it.
    flat.index_copy_(0, at, torch.where(is_real, new, first))


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
    *,
    exact: bool = False,
) -> Tensor:
    """Causal attention of one query a sequence, [S, Hq, D], over its `seq_lens` keys.

    Args:
        block_table: int32 [S, n]; what stands behind a sequence's blocks is not read.
        scale: of the scores.
        window: keys that a query sees, its own the last; 0 for all.
        soft_cap: scores become cap * tanh(score / cap); 0 for none.

    Returns:
        [S, Hq, D], contiguous; zeros for a sequence of length 0.
    """
    out = torch.empty(query.shape, dtype=_kept(query.dtype, exact), device=query.device)
    caches = (key_cache, value_cache, key_scales, value_scales)
    held = -(-seq_lens // key_cache.shape[1])
    columns = torch.arange(block_table.shape[1], device=query.device)
    block_table = torch.where(columns < held[:, None], block_table, 0)
    for seq in range(len(query)):
        positions = seq_lens[seq : seq + 1] - 1
        settings = (positions, scale, window, soft_cap, _wide(exact))
        out[seq] = _attend(query[seq : seq + 1], block_table[seq], caches, *settings)[0]
    return out


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
    *,
    exact: bool = False,
) -> Tensor:
    """Causal attention of the last queries of each sequence, end to end in [T, Hq, D], over all its keys.

    Waits for the device, which knows the lengths.

    Args:
        query_starts: int32 [S + 1] cumulative.
        seq_lens: int32 [S] keys, those of the new tokens included; they are in the cache.
        tiles: int32 [n, 2] sequence and first of `tiles.extend_tiles(...).tile_tokens` tokens.

    Returns:
        [T, Hq, D], contiguous; undefined for tokens of no tile.
    """
    out = torch.zeros(query.shape, dtype=_kept(query.dtype, exact), device=query.device)
    caches = (key_cache, value_cache, key_scales, value_scales)
    starts, lengths = query_starts.tolist(), seq_lens.tolist()
    for seq in sorted({row[0] for row in tiles.tolist()}):
        first, stop = starts[seq], starts[seq + 1]
        num_blocks = -(-lengths[seq] // key_cache.shape[1])
        positions = torch.arange(lengths[seq] - (stop - first), lengths[seq], device=query.device)
        settings = (positions, scale, window, soft_cap, _wide(exact))
        out[first:stop] = _attend(query[first:stop], block_table[seq, :num_blocks], caches, *settings)
    return out


Caches = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # keys, values and their scales


def _gathered(blocks: Tensor, caches: Caches, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [n * block_size, Hkv, D] of the blocks [n], in `wide`."""
    blocks = blocks.clamp(min=0).long()
    found = []
    for cache, scales in zip(caches[:2], caches[2:], strict=True):
        assert cache is not None
        if cache.dtype == FP8:  # which has no index_select
            rows = cache.view(torch.uint8).index_select(0, blocks).view(FP8).to(wide)
        else:
            rows = cache.index_select(0, blocks).to(wide)
        if scales is not None:
            rows = rows * scales.index_select(0, blocks)[..., None]
        found.append(rows.flatten(0, 1))
    return found[0], found[1]


def _attend(
    query: Tensor,
    blocks: Tensor,
    caches: Caches,
    positions: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    wide: torch.dtype,
) -> Tensor:
    """[T, Hq, D] in `wide`, of queries at `positions` [T]; a query that sees no key gives zeros.

    In pieces of queries and of keys: all scores of a prompt of 32,768 tokens and 32 heads would take 128 GiB,
    and one sequence of 131,072 keys in float32 1 GiB. Across the keys the softmax is that of Milakov and
    Gimelshein (2018).
    """
    block_size = caches[0].shape[1]
    num_blocks = max(1, MAX_KEYS // block_size)
    step = max(1, MAX_SCORES // max(1, query.shape[1] * block_size * min(num_blocks, len(blocks))))
    pieces = zip(torch.split(query, step), torch.split(positions, step), strict=True)
    attended = []
    for some, places in pieces:
        running = _Softmax(some, caches[0].shape[2], wide)
        for first in range(0, len(blocks), num_blocks):
            keys, values = _gathered(blocks[first : first + num_blocks], caches, wide)
            running.add(keys, values, first * block_size, places, (scale, window, soft_cap))
        attended.append(running.result())
    return torch.cat(attended)


class _Softmax:
    """Of queries [T, Hq, D], over keys that come in pieces."""

    def __init__(self, query: Tensor, num_kv_heads: int, wide: torch.dtype) -> None:
        num_tokens, num_heads, head_dim = query.shape
        self._query = query.to(wide).view(num_tokens, num_kv_heads, -1, head_dim)
        shape = (num_kv_heads, num_heads // num_kv_heads, num_tokens)
        self._highest = self._query.new_full(shape, -torch.inf)
        self._total = self._query.new_zeros(shape)
        self._sums = self._query.new_zeros((*shape, head_dim))

    def add(
        self,
        keys: Tensor,
        values: Tensor,
        first: int,
        positions: Tensor,
        settings: tuple[float, int, float],
    ) -> None:
        """Keys [n, Hkv, D] and values at the places from `first` on."""
        scale, window, soft_cap = settings
        places = torch.arange(first, first + len(keys), device=keys.device)
        is_visible = places <= positions[:, None]
        if window:
            is_visible = is_visible & (places > positions[:, None] - window)
        # Slots that nobody sees may hold NaN, and zero times NaN is NaN.
        is_used = is_visible.any(0)[:, None, None]
        keys, values = torch.where(is_used, keys, 0), torch.where(is_used, values, 0)
        scores = torch.einsum("thgd,nhd->hgtn", self._query, keys) * scale
        if soft_cap:
            scores = (scores / soft_cap).tanh() * soft_cap
        scores = scores.masked_fill(~is_visible, -torch.inf)
        highest = torch.maximum(self._highest, scores.amax(-1))
        level = torch.where(highest == -torch.inf, 0, highest)  # of a query that has seen no key yet
        weights, shrink = (scores - level[..., None]).exp(), (self._highest - level).exp()
        self._total = self._total * shrink + weights.sum(-1)
        self._sums = self._sums * shrink[..., None] + torch.einsum("hgtn,nhd->hgtd", weights, values)
        self._highest = highest

    def result(self) -> Tensor:
        """[T, Hq, D]."""
        total = torch.where(self._total == 0, 1, self._total)
        mean = self._sums / total[..., None]
        return mean.permute(2, 0, 1, 3).flatten(1, 2)


def _wide(exact: bool) -> torch.dtype:
    return torch.float64 if exact else torch.float32


def _kept(dtype: torch.dtype, exact: bool) -> torch.dtype:
    """Of a result."""
    return torch.float64 if exact else dtype


def _pieces(count: int, size: int) -> Iterator[slice]:
    """Of `count` rows of `size` values each."""
    step = max(1, MAX_VALUES // max(1, size))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, *, exact: bool = False) -> Tensor:
    """Rows x [T, n] over its root mean square, times weight [n] (float32), in `dtype`."""
    out = torch.empty(x.shape, dtype=_kept(dtype, exact), device=x.device)
    for piece in _pieces(*x.shape):
        values = x[piece].to(_wide(exact))
        out[piece] = values * (values.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, *, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual), the sum in residual's dtype; both inputs [T, n]."""
    total = torch.empty(x.shape, dtype=_kept(residual.dtype, exact), device=x.device)
    for piece in _pieces(*x.shape):
        total[piece] = x[piece].to(_wide(exact)) + residual[piece].to(_wide(exact))
    return rms_norm(total, weight, eps, dtype, exact=exact), total


def norm_rope(
    x: Tensor,
    num_q_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool,
    *,
    exact: bool = False,
) -> Tensor:
    """Norm and turn the heads x [T, Hq + Hkv, D], queries first.

    Args:
        num_q_heads: Hq.
        q_weight: [D] of the norm over a query's head, in float32; k_weight alike. None for no norm.
        cos: [T, n] in float32; the first 2 n values of a head are turned. sin alike.
        interleaved: pairs are (0, 1), (2, 3) ...; else (0, n), (1, n + 1) ...

    Returns:
        [T, Hq + Hkv, D], contiguous.
    """
    out = torch.empty(x.shape, dtype=_kept(x.dtype, exact), device=x.device)
    for piece in _pieces(len(x), x.shape[1] * x.shape[2]):
        values = x[piece].to(_wide(exact))
        if q_weight is not None and k_weight is not None:
            factor = (values.square().mean(-1, keepdim=True) + eps).rsqrt()
            is_q = (torch.arange(x.shape[1], device=x.device) < num_q_heads)[:, None]
            values = values * factor * torch.where(is_q, q_weight, k_weight)
        out[piece] = _turned(values, cos[piece, None], sin[piece, None], interleaved)
    return out


def _turned(values: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Heads [T, H, D] by angles [T, 1, n]."""
    half = cos.shape[-1]
    turned, rest = values[..., : 2 * half], values[..., 2 * half :]
    if interleaved:
        one, other = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack((one * cos - other * sin, other * cos + one * sin), -1).flatten(-2)
    else:
        one, other = turned[..., :half], turned[..., half:]
        pairs = torch.cat((one * cos - other * sin, other * cos + one * sin), -1)
    return torch.cat((pairs, rest), -1)


def swiglu(x: Tensor, *, exact: bool = False) -> Tensor:
    """The silu of the first half of x [T, 2 n], times the second."""
    size = x.shape[1] // 2
    out = torch.empty((len(x), size), dtype=_kept(x.dtype, exact), device=x.device)
    for piece in _pieces(*x.shape):
        gate, up = x[piece].to(_wide(exact)).chunk(2, -1)
        out[piece] = torch.nn.functional.silu(gate) * up
    return out


def group_matmul(
    x: Tensor, weight: Tensor, scales: Tensor, offsets: Tensor | None, arch: int, *, exact: bool = False
) -> Tensor:
    """Rows x [T, K] times a matrix in groups of GROUP_SIZE values along K, in x's dtype.

    In pieces of columns: gate and up of an 8B in float32 would take 450 MiB, three times while it is made.

    Args:
        weight: int32 [K / 8, N] of eight 4-bit values each, the lowest first; int8 [K, N] without offsets.
        scales: [K / GROUP_SIZE, N] in float16; a value is weight * scale + offset. offsets alike.
    """
    wide = _wide(exact)
    out = torch.empty((len(x), weight.shape[1]), dtype=_kept(x.dtype, exact), device=x.device)
    for columns in _pieces(weight.shape[1], x.shape[1]):
        some = None if offsets is None else offsets[:, columns]
        # What is multiplied has the type of x.
        matrix = unpacked(weight[:, columns], scales[:, columns], some, wide).to(x.dtype).to(wide)
        for rows in _pieces(*x.shape):
            out[rows, columns] = x[rows].to(wide) @ matrix
    return out


def unpacked(weight: Tensor, scales: Tensor, offsets: Tensor | None, wide: torch.dtype) -> Tensor:
    """The matrix [K, N] of `group_matmul` in `wide`."""
    if offsets is None:
        values = weight.to(wide)
    else:
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=weight.device)
        values = ((weight[:, None] >> shifts[:, None]) & 0xF).flatten(0, 1).to(wide)
    groups = values.view(-1, GROUP_SIZE, values.shape[-1]) * scales.to(wide)[:, None]
    if offsets is not None:
        groups = groups + offsets.to(wide)[:, None]
    return groups.view(values.shape)
