"""The native kernels' paged cache and attention for a model that runs on torch.

Stands in for `models.torch_attention.PagedKV`: the rest is torch's, or transformers' own code. Q, K and V
come turned; they are copied to float32 rows, the kernels' form.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trivet.contract import BlockCopy
from trivet.errors import Unsupported
from trivet.models.spec import Attention, ModelSpec
from trivet.models.torch_attention import PagedStep
from trivet_cpu import native_plan
from trivet_cpu.memory_plan import Shape, kv_token_bytes
from trivet_cpu.native_library import AttentionSpace, Cache, Layer, Model, Step
from trivet_cpu.native_pool import NativePool
from trivet_cpu.native_weights import Arena


class NativeKV:
    """Keys and values of all layers, in the kernels' layout; see `models.torch_attention.AttentionCache`."""

    workspace_blocks = 0

    def __init__(
        self,
        library: ctypes.CDLL,
        pool: NativePool,
        spec: ModelSpec,
        shape: Shape,
        num_blocks: int,
        num_host_blocks: int = 0,
    ) -> None:
        """Allocates and touches every page. Raises: MemoryError."""
        self._library, self._pool = library, pool
        self.block_size = shape.block_size
        self._counts = (num_blocks, num_host_blocks)
        attentions = [spec.layer(index).attention for index in range(spec.num_layers)]
        token_bytes = [kv_token_bytes(attention, shape.kv_dtype) for attention in attentions]
        device, host = ([count * shape.block_size * size for size in token_bytes] for count in self._counts)
        self._kv, self._host_kv = Arena(sum(device)), Arena(sum(host))
        for size in host:
            self._host_kv.take(size)
        self._layers = (Layer * spec.num_layers)()
        for layer, attention, size in zip(self._layers, attentions, device, strict=True):
            layer.rope, layer.num_heads = -1, attention.num_heads
            layer.cache = Cache(
                kind=native_plan.CACHE_KINDS[shape.kv_dtype],
                block_size=shape.block_size,
                num_heads=attention.num_kv_heads,
                head_dim=attention.head_dim,
                data=self._kv.take(size),
            )
        tokens = shape.max_num_batched_tokens
        parts = native_plan.attention_parts(spec, tokens, pool.most_threads)
        native = native_plan.NativeShape(shape, shape.dtype, pool.most_threads)
        partial_bytes = native_plan.partial_bytes(spec, native)
        self._buffers = Arena(sum(parts) + partial_bytes)
        stride = native_plan.qkv_stride(spec)
        rows = self._buffers.floats((tokens, stride))
        self._rows = torch.from_numpy(rows)
        self._model = Model(
            layers=ctypes.cast(self._layers, ctypes.POINTER(Layer)),
            num_layers=spec.num_layers,
            qkv_stride=stride,
            qkv=rows.ctypes.data,
            slots=self._buffers.take(parts[1]),
            scratch=self._buffers.take(parts[2]),
            # One sequence of full length for each thread may be cut into pieces.
            attention=AttentionSpace(
                partials=self._buffers.take(partial_bytes), num_partials=partial_bytes // 4
            ),
        )

    @property
    def size_bytes(self) -> int:
        """Of the cache alone."""
        return self._kv.size_bytes

    @property
    def host_bytes(self) -> int:
        """Of the blocks to which others are swapped out."""
        return self._host_kv.size_bytes

    @property
    def workspace_bytes(self) -> int:
        return self._buffers.size_bytes

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, spec: Attention, step: PagedStep) -> Tensor:
        """As `torch_attention.paged_attention`.

        Raises: Unsupported for a soft cap that the plan did not know of.
        """
        unknown = native_plan.unknown_attention(spec)
        if unknown is not None:
            raise Unsupported(
                f"the native attention does not compute {unknown}; leave options.attention unset"
            )
        num_tokens = len(q)
        if not num_tokens:
            return torch.empty_like(q)
        self._layers[layer].window, self._layers[layer].scale = spec.window or 0, spec.scale
        first = 0
        for part in (q, k, v):
            last = first + part.shape[1] * part.shape[2]
            self._rows[:num_tokens, first:last].view(part.shape).copy_(part)
            first = last
        batch = step.batch
        table = batch.block_tables[0]
        described = Step(
            num_tokens=num_tokens,
            num_seqs=len(batch.slots),
            positions=batch.positions.ctypes.data,
            query_start_loc=batch.query_start_loc.ctypes.data,
            seq_lens=batch.seq_lens.ctypes.data,
            block_table=table.ctypes.data,
            table_stride=table.shape[1],
        )
        with self._pool.step() as pool:
            self._library.trivet_attend(pool, ctypes.byref(self._model), ctypes.byref(described), layer)
        width = q.shape[1] * q.shape[2]
        found = self._rows[:num_tokens, :width].view(q.shape)
        return torch.empty(q.shape, dtype=q.dtype).copy_(found)

    def copy_blocks(self, copy: BlockCopy) -> None:
        """As `torch_attention.PagedKV.copy_blocks`."""
        for source, target in zip(self._blocks(copy.from_host), self._blocks(copy.to_host), strict=True):
            target[copy.pairs[:, 1]] = source[copy.pairs[:, 0]]

    def _blocks(self, on_host: bool) -> list[NDArray[np.uint8]]:
        """[num_blocks, bytes of a block] of each layer."""
        arena = self._host_kv if on_host else self._kv
        return list(arena.arrays(self._counts[on_host]))
