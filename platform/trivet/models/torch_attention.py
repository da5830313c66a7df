"""Paged attention in plain torch: gather the blocks of a sequence, then scaled-dot-product attention.

One tensor a layer holds K and V of a token side by side, [num_blocks, block_size, 2, num_kv_heads,
head_dim], so that one gather brings both. Queries of a KV head are passed as its query rows, [B, Hkv, G, D]:
torch's `enable_gqa` expands K and V first and was 4 times slower (2-core Zen 4, 32 sequences of 2,048).

Contract rules kept here: K and V of all tokens are written before any is read (2); gathered slots at or past
a sequence's length are overwritten with zeros before use, because a mask only adds -inf, and NaN - inf is
NaN (3); a sequence attends to its own blocks only (4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from numpy.typing import NDArray
from torch import Tensor

from trivet.contract import Batch, BlockCopy
from trivet.models.block_copy import copy_blocks
from trivet.models.spec import Attention, ModelSpec

# A group of decoding sequences is split where padding to its longest would gather more token slots than
# this: about what one more group costs in fixed time (25 us against 0.1 us a slot, 2-core Zen 4).
MAX_PADDING_SLOTS = 512


def layer_elements(attention: Attention) -> int:
    """Elements that one token takes in the cache of one layer: its K and its V."""
    return 2 * attention.num_kv_heads * attention.head_dim


class AttentionCache(Protocol):
    """A paged cache that knows how to attend over itself; `PagedKV`, or one of a backend's own layout."""

    block_size: int
    workspace_blocks: int  # what `PagedStep` may gather at once

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, spec: Attention, step: PagedStep) -> Tensor:
        """As `paged_attention`."""


class PagedKV:
    """The paged cache of all layers, and the workspace that gathers from it."""

    def __init__(
        self,
        spec: ModelSpec,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        workspace_blocks: int,
        num_host_blocks: int = 0,
    ) -> None:
        """Allocates and touches every page. Raises: RuntimeError, MemoryError of torch and NumPy."""
        self.block_size = block_size
        self.dtype = dtype
        attentions = [spec.layer(index).attention for index in range(spec.num_layers)]
        widths = [layer_elements(attention) for attention in attentions]
        self._layers, self._host_layers = (
            [_touched((count, block_size, 2, a.num_kv_heads, a.head_dim), dtype) for a in attentions]
            for count in (num_blocks, num_host_blocks)
        )
        self.workspace_blocks = workspace_blocks
        self._workspace = _touched((workspace_blocks * block_size * max(widths),), dtype)

    @property
    def size_bytes(self) -> int:
        """Of the cache alone."""
        return sum(layer.nbytes for layer in self._layers)

    @property
    def host_bytes(self) -> int:
        """Of the blocks to which others are swapped out."""
        return sum(layer.nbytes for layer in self._host_layers)

    @property
    def workspace_bytes(self) -> int:
        return self._workspace.nbytes

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, spec: Attention, step: PagedStep) -> Tensor:
        """As `paged_attention`."""
        return paged_attention(q, k, v, self, layer, spec, step)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [T, num_kv_heads, head_dim] at slots [T] (block * block_size + offset)."""
        cache = self._layers[layer]
        flat = cache.view(-1, *cache.shape[2:])
        flat[:, 0].index_copy_(0, slots, k.to(self.dtype))
        flat[:, 1].index_copy_(0, slots, v.to(self.dtype))

    def gather(self, layer: int, group: AttentionGroup) -> Gathered:
        """The group's blocks in order: in place, or in the workspace until the next call."""
        cache, blocks = self._layers[layer], group.blocks
        if group.first_slot is not None:
            return Gathered.in_place(cache, group, group.first_slot)
        width = math.prod(cache.shape[1:])
        found = group.gathered.get(width)
        if found is None:  # views of the workspace serve all layers of the step
            out = self._workspace[: len(blocks) * width].view(-1, width)
            found = Gathered.of(out, cache, group)
            group.gathered[width] = found
        torch.index_select(cache.view(-1, width), 0, blocks, out=found.blocks)
        if group.stale is not None:
            found.slots.index_fill_(0, group.stale, 0.0)
        return found

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Copy whole blocks within the cache, to the host blocks or from them. All sources are read first."""
        sources = self._host_layers if copy.from_host else self._layers
        targets = self._host_layers if copy.to_host else self._layers
        copy_blocks(sources, targets, copy.pairs)


def _touched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages exist.

    NumPy asks the kernel for huge pages where that is left to the program (`madvise`); torch does not.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:  # which has no view of another type
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.empty(num_bytes, np.uint8)).view(dtype).view(shape).zero_()


@dataclass(frozen=True, slots=True)
class Gathered:
    """Keys and values of one group, in the workspace or in the cache itself."""

    blocks: Tensor  # [B * n, elements of a block], where they are gathered to
    slots: Tensor  # [B * n * block_size, elements of a token]
    k: Tensor  # [B, num_kv_heads, L, head_dim]
    v: Tensor

    @classmethod
    def of(cls, blocks: Tensor, cache: Tensor, group: AttentionGroup) -> Gathered:
        """`blocks` is the workspace, `cache` the cache of a layer of this shape."""
        both = blocks.view(group.num_seqs, -1, *cache.shape[2:])[:, : group.num_keys]
        k, v = (part.transpose(1, 2) for part in both.unbind(2))
        return cls(blocks, blocks.view(-1, math.prod(cache.shape[2:])), k, v)

    @classmethod
    def in_place(cls, cache: Tensor, group: AttentionGroup, first_slot: int) -> Gathered:
        """Of a lone sequence whose blocks follow each other in the cache: nothing is copied."""
        slots = cache.view(-1, *cache.shape[2:])[first_slot : first_slot + group.num_keys]
        k, v = (part.transpose(0, 1)[None] for part in slots.unbind(1))
        return cls(cache, slots, k, v)


# ---- what a step attends to ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Sequences whose attention is one call: B decoding ones, or one with a chunk of Q tokens."""

    tokens: slice | Tensor  # of the step
    num_seqs: int  # B
    query_len: int  # Q; 1 where B > 1
    blocks: Tensor  # [B * n] block ids
    num_keys: int  # L: the first L gathered slots of a sequence are looked at
    stale: Tensor | None  # gathered slots, counted over all B, that hold nothing of the sequence
    visible: NDArray[np.bool_] | None  # [B, Q, L]; None: every key, or as `is_causal` says
    is_causal: bool
    distances: NDArray[np.float32] | None  # [B, Q, L] key position less query position, for ALiBi
    first_slot: int | None  # of a lone sequence whose blocks are consecutive: they need no gathering
    gathered: dict[int, Gathered] = field(default_factory=dict)  # by elements a token


class PagedStep:
    """The runner's view of one batch for `Ops.attention`."""

    def __init__(self, batch: Batch, block_size: int, workspace_blocks: int) -> None:
        self.batch = batch
        self._block_size = block_size
        self._workspace_blocks = workspace_blocks
        self._starts = batch.query_start_loc.astype(np.int64)
        self._lens = batch.seq_lens.astype(np.int64)
        self._table = batch.block_tables[0].astype(np.int64)
        self._groups: dict[tuple[int | None, bool], list[AttentionGroup]] = {}
        self._masks: dict[tuple[int, Attention, torch.dtype], Tensor] = {}
        positions = batch.positions.astype(np.int64)
        seqs = np.repeat(np.arange(len(self._lens)), np.diff(self._starts))
        block = self._table[seqs, positions // block_size] if len(positions) else positions
        self.slots = torch.from_numpy(block * block_size + positions % block_size)

    def groups(self, spec: Attention) -> list[AttentionGroup]:
        """How to attend under this window; the same for all layers that share it."""
        key = (spec.window, spec.alibi)
        if key not in self._groups:
            self._groups[key] = list(self._make_groups(spec))
        return self._groups[key]

    def mask(self, group: AttentionGroup, spec: Attention, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores, broadcast to [B, Hkv, G, Q, L]; None where nothing is."""
        if group.visible is None and group.distances is None:
            return None
        key = (id(group), spec, dtype)
        if key not in self._masks:
            self._masks[key] = _additive_mask(group, spec).to(dtype)
        return self._masks[key]

    def _make_groups(self, spec: Attention) -> Iterator[AttentionGroup]:
        query_lens = np.diff(self._starts)
        num_decodes = int(np.searchsorted(query_lens, 2))  # sorted by query length
        firsts = np.zeros_like(self._lens)
        if spec.window is not None:
            firsts = np.maximum(0, self._lens - query_lens + 1 - spec.window) // self._block_size
        counts = -(-self._lens // self._block_size) - firsts
        for members in self._packed(counts[:num_decodes]):
            yield self._decode_group(members, firsts[members], int(counts[members].max()), spec)
        for i in range(num_decodes, len(self._lens)):
            yield self._chunk_group(i, int(firsts[i]), int(counts[i]), spec)

    def _packed(self, counts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Split decoding sequences so that little is gathered for padding and the workspace suffices."""
        order = np.argsort(-counts, kind="stable")
        begin, padding = 0, 0
        for i in range(len(order)):
            longest = counts[order[begin]]
            padding += int(longest - counts[order[i]]) * self._block_size
            is_full = (i - begin + 1) * longest > self._workspace_blocks
            if padding > MAX_PADDING_SLOTS or is_full:
                yield np.sort(order[begin:i])
                begin, padding = i, 0
        if len(order):
            yield np.sort(order[begin:])

    def _decode_group(
        self, members: NDArray[np.int64], firsts: NDArray[np.int64], num_blocks: int, spec: Attention
    ) -> AttentionGroup:
        """`members` are sequences of one token each, padded to `num_blocks` blocks."""
        columns = firsts[:, None] + np.arange(num_blocks)
        # Past its own blocks a sequence has padding in the table, or the table ends: take scratch, block 0.
        inside = columns < self._table.shape[1]
        blocks = np.where(inside, self._table[members[:, None], np.where(inside, columns, 0)], 0)
        num_slots = num_blocks * self._block_size
        keys = firsts[:, None] * self._block_size + np.arange(num_slots)  # [B, slots] positions
        lens = self._lens[members][:, None]
        visible = keys < lens
        stale = np.flatnonzero(~visible)
        if spec.window is not None:
            visible &= keys >= lens - spec.window
        num_keys = int((lens[:, 0] - firsts * self._block_size).max())
        visible = visible[:, None, :num_keys]
        is_run = members[-1] - members[0] + 1 == len(members)
        return AttentionGroup(
            tokens=slice(int(members[0]), int(members[-1]) + 1) if is_run else torch.from_numpy(members),
            num_seqs=len(members),
            query_len=1,
            blocks=torch.from_numpy(blocks.reshape(-1)),
            num_keys=num_keys,
            # A lone sequence is cut at its length: nothing stale is looked at.
            stale=torch.from_numpy(stale) if len(members) > 1 and len(stale) else None,
            visible=None if visible.all() else visible,
            is_causal=False,
            distances=(keys - lens + 1)[:, None, :num_keys].astype(np.float32) if spec.alibi else None,
            first_slot=self._first_slot(blocks[0]) if len(members) == 1 else None,
        )

    def _chunk_group(self, i: int, first: int, num_blocks: int, spec: Attention) -> AttentionGroup:
        """Sequence `i` with several tokens; keys start with its block number `first`."""
        begin, end = int(self._starts[i]), int(self._starts[i + 1])
        blocks = np.ascontiguousarray(self._table[i, first : first + num_blocks])
        base = first * self._block_size
        num_keys = int(self._lens[i]) - base
        queries = np.arange(int(self._lens[i]) - (end - begin), int(self._lens[i]))[:, None]
        keys = base + np.arange(num_keys)
        is_causal = num_keys == end - begin and spec.window is None
        visible = None
        if not is_causal:
            visible = keys <= queries
            if spec.window is not None:
                visible &= keys > queries - spec.window
        return AttentionGroup(
            tokens=slice(begin, end),
            num_seqs=1,
            query_len=end - begin,
            blocks=torch.from_numpy(blocks),
            num_keys=num_keys,
            stale=None,
            visible=None if visible is None else visible[None],
            is_causal=is_causal,
            distances=(keys - queries)[None].astype(np.float32) if spec.alibi else None,
            first_slot=self._first_slot(blocks),
        )

    def _first_slot(self, blocks: NDArray[np.int64]) -> int | None:
        """Of blocks [n] where each follows the one before, as they do while few sequences run."""
        is_run = bool((np.diff(blocks) == 1).all())
        return int(blocks[0]) * self._block_size if is_run else None


def _additive_mask(group: AttentionGroup, spec: Attention) -> Tensor:
    """float32 [B, 1 or Hkv, 1 or G, Q, L]: ALiBi's slopes times distance, -inf where a key is hidden."""
    shape = (group.num_seqs, 1, 1, group.query_len, group.num_keys)
    mask = torch.zeros(shape)
    if group.distances is not None:
        slopes = torch.tensor(alibi_slopes(spec.num_heads)).view(1, spec.num_kv_heads, -1, 1, 1)
        mask = slopes * torch.from_numpy(group.distances).view(shape)
    if group.visible is not None:
        mask = mask.masked_fill(~torch.from_numpy(group.visible).view(shape), -math.inf)
    elif group.is_causal:
        hidden = torch.ones(group.query_len, group.num_keys, dtype=torch.bool).triu(1)
        mask = mask.masked_fill(hidden, -math.inf)
    return mask


def alibi_slopes(num_heads: int) -> list[float]:
    """One slope a head (Press et al. 2022, section 3; heads beyond a power of two take odd steps)."""
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    return slopes + [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(num_heads - power)]


# ---- the operation -------------------------------------------------------------------------------


def paged_attention(
    q: Tensor, k: Tensor, v: Tensor, kv: PagedKV, layer: int, spec: Attention, step: PagedStep
) -> Tensor:
    """Write k and v of all T tokens, then attend; [T, num_heads, head_dim] as q."""
    kv.write(layer, step.slots, k, v)
    groups = step.groups(spec)
    if len(groups) == 1:
        return _attend(q[groups[0].tokens], kv, layer, spec, step, groups[0])
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for group in groups:
        out[group.tokens] = _attend(q[group.tokens], kv, layer, spec, step, group)
    return out


def _attend(
    q: Tensor, kv: PagedKV, layer: int, spec: Attention, step: PagedStep, group: AttentionGroup
) -> Tensor:
    """Q [B * Q, num_heads, head_dim] of one group; the result has its shape and dtype."""
    batch, queries, kv_heads = group.num_seqs, group.query_len, spec.num_kv_heads
    gathered = kv.gather(layer, group)
    # Where the cache and the model differ in dtype, float32 is the one that loses nothing.
    dtype = q.dtype if q.dtype == kv.dtype else torch.float32
    k, v = gathered.k.to(dtype), gathered.v.to(dtype)
    if queries == 1 and spec.soft_cap is None:  # the G query rows of a KV head share its K and V
        flat = step.mask(group, spec, dtype)
        flat = None if flat is None else flat[:, :, :, 0]
        rows = q.to(dtype).view(batch, kv_heads, -1, spec.head_dim)
        out = F.scaled_dot_product_attention(rows, k, v, attn_mask=flat, scale=spec.scale)
        return out.view(q.shape).to(q.dtype)
    rows = q.to(dtype).view(batch, queries, kv_heads, -1, spec.head_dim).permute(0, 2, 3, 1, 4)
    mask = step.mask(group, spec, dtype)  # rows are [B, Hkv, G, Q, D]
    if spec.soft_cap is not None:
        out = _capped_attention(rows, k, v, spec, mask if mask is not None else _causal(group, dtype))
    else:  # B is 1: KV heads stand in the batch axis, so that all G heads read the same K and V
        k, v = (x[0][:, None].expand(-1, rows.shape[2], -1, -1) for x in (k, v))
        is_causal = group.is_causal and mask is None
        shaped = None if mask is None else mask[0]
        out = F.scaled_dot_product_attention(rows[0], k, v, shaped, is_causal=is_causal, scale=spec.scale)
    out = out.reshape(batch, spec.num_heads, queries, spec.head_dim).transpose(1, 2)
    return out.reshape(q.shape).to(q.dtype)


def _causal(group: AttentionGroup, dtype: torch.dtype) -> Tensor | None:
    if not group.is_causal:
        return None
    return torch.full((group.query_len, group.num_keys), -math.inf, dtype=dtype).triu(1)


def _capped_attention(rows: Tensor, k: Tensor, v: Tensor, spec: Attention, mask: Tensor | None) -> Tensor:
    """Scores cap * tanh(scores / cap) before the mask (Gemma 2 report, section 2), in float32."""
    assert spec.soft_cap is not None
    scores = torch.einsum("bhgqd,bhkd->bhgqk", rows.float(), k.float()) * spec.scale
    scores = (scores / spec.soft_cap).tanh() * spec.soft_cap
    if mask is not None:
        scores = scores + mask.float()
    return torch.einsum("bhgqk,bhkd->bhgqd", scores.softmax(-1), v.float()).to(rows.dtype)
