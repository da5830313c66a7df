"""The paged KV cache on the device: keys and values of a layer, [blocks, block_size, num_kv_heads, head_dim].

All layers are parts of one allocation: of two tensors a layer torch's allocator would round each up to 2 MiB.
The layout that FlashAttention and FlashInfer read, too. An int8 cache has a float32 scale for each token
and head, [blocks, block_size, num_kv_heads]; float8 e4m3 is stored unscaled, and what is beyond its 448
becomes 448 of its sign. What is not a number is read as such from either.
"""

from __future__ import annotations

import math
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
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


class PagedKV:
    """Keys and values of all layers."""

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_size: int, kv_dtype: str, device: torch.device
    ) -> None:
        """Zeros, so that every page exists. Raises: torch.OutOfMemoryError, RuntimeError of torch."""
        self.block_size = block_size
        shapes: list[tuple[tuple[int, ...], torch.dtype]] = []  # in the order of `layers`
        for index in range(spec.num_layers):
            attention = spec.layer(index).attention
            tokens = (num_blocks, block_size, attention.num_kv_heads)
            shapes += [((*tokens, attention.head_dim), KV_DTYPES[kv_dtype])] * 2
            shapes += [(tokens, torch.float32)] * (2 if kv_dtype == "int8" else 0)
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
        self.size_bytes = sum(sizes)
        parts = torch.split(torch.zeros(self.size_bytes, dtype=torch.uint8, device=device), sizes)
        tensors = [part.view(dtype).view(shape) for part, (shape, dtype) in zip(parts, shapes, strict=True)]
        width = len(tensors) // spec.num_layers
        self.layers = [LayerKV(*tensors[first : first + width]) for first in range(0, len(tensors), width)]

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
