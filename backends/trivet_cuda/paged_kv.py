"""The paged KV cache on the device: keys and values of a layer, [blocks, block_size, num_kv_heads, head_dim].

The layout that FlashAttention and FlashInfer read, too. An int8 cache has a float32 scale for each token
and head, [blocks, block_size, num_kv_heads]; float8 e4m3 is stored unscaled, and what is beyond its 448
becomes 448 of its sign. What is not a number is read as such from either.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trivet.contract import BlockCopy
from trivet.models.spec import ModelSpec
from trivet.models.torch_ops import DTYPES
from trivet_cuda.upload import upload

KV_DTYPES = {**DTYPES, "fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8}


class LayerKV(NamedTuple):
    """In the order in which the kernels take them."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None


class PagedKV:
    """Keys and values of all layers."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, kv_dtype: str, device: torch.device
    ) -> None:
        """Zeros, so that every page exists. Raises: torch.OutOfMemoryError, RuntimeError of torch."""
        self.block_size = block_size
        self.layers: list[LayerKV] = []
        for index in range(spec.num_layers):
            attention = spec.layer(index).attention
            tokens = (num_blocks, block_size, attention.num_kv_heads)
            shape, dtype = (*tokens, attention.head_dim), KV_DTYPES[kv_dtype]
            keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
            scales: list[Tensor | None] = [None, None]
            if kv_dtype == "int8":
                scales = [torch.zeros(tokens, device=device) for _ in range(2)]
            self.layers.append(LayerKV(keys, values, *scales))

    @property
    def size_bytes(self) -> int:
        return sum(each.nbytes for layer in self.layers for each in layer if each is not None)

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Within the cache; all sources are read first."""
        device = self.layers[0].keys.device
        at = upload({"sources": copy.pairs[:, 0], "targets": copy.pairs[:, 1]}, device)
        sources, targets = at["sources"].long(), at["targets"].long()
        for layer in self.layers:
            for cache in layer:
                if cache is not None:
                    blocks = cache.view(torch.uint8)  # float8 has no index_copy_
                    blocks.index_copy_(0, targets, blocks.index_select(0, sources))
