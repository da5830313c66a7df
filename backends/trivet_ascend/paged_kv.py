"""The paged KV cache on the device, and one step's view of it.

Two tensors a layer, [blocks, block_size, num_kv_heads, head_dim], as the attention operation reads them.
Lengths stay host integers, for the operation takes them so: reading them back would wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trivet.models.block_copy import copy_blocks
from trivet.models.spec import ModelSpec

if TYPE_CHECKING:
    from trivet.contract import Batch, BlockCopy


class PagedKV:
    """Keys and values of all layers."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Zeros, so that every page exists. Raises: RuntimeError of torch where memory is lacking."""
        self.block_size = block_size
        self.layers: list[tuple[Tensor, Tensor]] = []
        for index in range(spec.num_layers):
            attention = spec.layer(index).attention
            shape = (num_blocks, block_size, attention.num_kv_heads, attention.head_dim)
            keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
            self.layers.append((keys, values))

    @property
    def size_bytes(self) -> int:
        return sum(cache.nbytes for layer in self.layers for cache in layer)

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Within the cache; all sources are read first."""
        caches = [cache for layer in self.layers for cache in layer]
        copy_blocks(caches, caches, copy.pairs)


@dataclass(frozen=True, slots=True)
class StepView:
    """What attention needs of one batch."""

    slots: Tensor  # int32 [T] where each token's K and V go
    block_table: Tensor  # int32 [S, n]
    query_ends: list[int]  # cumulative, the last is T
    seq_lens: list[int]

    @classmethod
    def of(cls, batch: Batch, block_size: int, device: torch.device) -> StepView:
        """Slots are computed on the host and are distinct: every token has a place of its own."""
        table = batch.block_tables[0]
        seqs = np.repeat(np.arange(len(batch.seq_lens)), np.diff(batch.query_start_loc))
        offsets = batch.positions % block_size
        slots = table[seqs, batch.positions // block_size] * block_size + offsets
        return cls(
            slots=torch.from_numpy(slots.astype(np.int32)).to(device),
            block_table=torch.from_numpy(np.ascontiguousarray(table, np.int32)).to(device),
            query_ends=batch.query_start_loc[1:].tolist(),
            seq_lens=batch.seq_lens.tolist(),
        )
