"""A paged cache as an engine leaves it, and attention over it in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trivet_cuda.kernels.kv_write import write_kv
from trivet_cuda.tiles import extend_tiles

ARCH = 90


@dataclass
class PagedCase:
    """Sequences of `prefixes` cached and `queries` new tokens, in shuffled blocks of a poisoned cache."""

    dtype: torch.dtype
    kv_dtype: torch.dtype | None = None
    head_dim: int = 64
    num_heads: int = 8
    num_kv_heads: int = 2
    block_size: int = 16
    queries: Sequence[int] = (5, 1, 33, 1)
    prefixes: Sequence[int] = (20, 77, 0, 400)
    seed: int = 0
    caches: list[Tensor] = field(init=False)
    scales: list[Tensor | None] = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.kv_dtype = self.kv_dtype or self.dtype
        self.lengths = [a + b for a, b in zip(self.queries, self.prefixes, strict=True)]
        counts = [math.ceil(length / self.block_size) for length in self.lengths]
        num_blocks = 1 + sum(counts) + 2
        order = (1 + torch.randperm(num_blocks - 1, generator=self.generator)).int()
        # Behind a sequence's blocks the table names a block that exists and is poisoned.
        self.table = torch.full((len(counts), max(counts) + 1), int(order[-1]), dtype=torch.int32)
        first = 0
        for row, count in enumerate(counts):
            self.table[row, :count] = order[first : first + count]
            first += count
        shape = (1 + num_blocks, self.block_size, self.num_kv_heads, self.head_dim)
        is_int8 = self.kv_dtype == torch.int8
        poison = torch.full(shape, 113.0 if is_int8 else torch.nan)
        # A block lies in front of each cache, which is where a kernel writes slot -1 that takes it for one.
        self.guarded = [poison.to(self.kv_dtype, copy=True) for _ in range(2)]
        self.caches = [each[1:] for each in self.guarded]
        self.scales = [torch.full(shape[:3], torch.nan)[1:] if is_int8 else None for _ in range(2)]
        self._fill()

    def _fill(self) -> None:
        """Through the kernel, with two tokens of padding."""
        self.slots = torch.cat(
            [self._slots(row, length) for row, length in enumerate(self.lengths)] + [torch.tensor([-1, -1])]
        ).int()
        self.new = [
            self.random(len(self.slots), self.num_kv_heads, self.head_dim).to(self.dtype) for _ in range(2)
        ]
        write_kv(*self.new, *self.caches, *self.scales, self.slots)

    def _slots(self, row: int, length: int) -> Tensor:
        tokens = torch.arange(length)
        return self.table[row, tokens // self.block_size] * self.block_size + tokens % self.block_size

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def held(self, row: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a sequence as the cache holds them, [length, Hkv, D] in float64."""
        slots = self._slots(row, self.lengths[row]).long()
        found = []
        for cache, scales in zip(self.caches, self.scales, strict=True):
            values = cache.float().double().flatten(0, 1)[slots]
            if scales is not None:
                values = values * scales.double().flatten(0, 1)[slots][..., None]
            found.append(values)
        return found[0], found[1]

    def quantisation_error(self) -> float:
        """Of what was written, over its size."""
        kept = [torch.cat([self.held(row)[side] for row in range(len(self.lengths))]) for side in (0, 1)]
        pairs = zip(kept, self.new, strict=True)
        return max(float((a - b[: len(a)].double()).abs().max() / b.abs().max()) for a, b in pairs)

    def reference(self, row: int, query: Tensor, window: int, soft_cap: float) -> Tensor:
        """Attention of the last queries [T, Hq, D] of a sequence, in float64."""
        keys, values = self.held(row)
        group = self.num_heads // self.num_kv_heads
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("thd,nhd->htn", query.double(), keys) * self.head_dim**-0.5
        if soft_cap:
            scores = (scores / soft_cap).tanh() * soft_cap
        places = torch.arange(self.lengths[row])
        at = places[len(places) - len(query) :, None]
        is_visible = places <= at
        if window:
            is_visible &= places > at - window
        return torch.einsum("htn,nhd->thd", scores.masked_fill(~is_visible, -torch.inf).softmax(-1), values)

    def tiles(self) -> Tensor:
        assert self.kv_dtype is not None
        group = self.num_heads // self.num_kv_heads
        step = extend_tiles(ARCH, self.head_dim, group, self.dtype, self.kv_dtype).tile_tokens
        rows = [(seq, first) for seq, length in enumerate(self.queries) for first in range(0, length, step)]
        return torch.tensor(rows, dtype=torch.int32).view(-1, 2)
