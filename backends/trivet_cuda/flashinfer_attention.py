"""Attention by FlashInfer's kernels, where an operator asks for it by name and has it installed.

Its wrapper plans each step on the host, from lengths that it brings there, so steps are not captured; the
layers of a step share a plan. It reads the cache as ours do (`paged_kv`), in 16 bits or float8. Written
against flashinfer-python 0.7 (docs.flashinfer.ai/api/attention.html).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trivet.errors import BackendError
from trivet_cuda.memory_plan import FLASHINFER_BYTES
from trivet_cuda.op_table import OpTable

MakeWrapper = Callable[..., Any]


def load_flashinfer() -> MakeWrapper:
    """Raises: BackendError with what to do where FlashInfer is missing."""
    try:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper
    except (ImportError, OSError) as error:
        raise BackendError(
            f"options.attention is flashinfer and it cannot be imported: {error}; install it into this "
            "environment with pip install flashinfer-python, or leave the option out"
        ) from error
    found: MakeWrapper = BatchPrefillWithPagedKVCacheWrapper
    return found


def with_flashinfer(table: OpTable, device: torch.device, make_wrapper: MakeWrapper) -> OpTable:
    """`table` with attention by FlashInfer."""
    attention = FlashInferAttention(device, make_wrapper)
    return replace(table, decode_attention=attention.decode, extend_attention=attention.extend)


@dataclass(frozen=True)
class _Kind:
    """What a plan depends on beside the step."""

    is_decode: bool
    num_heads: int
    cache_shape: torch.Size
    dtype: torch.dtype
    kv_dtype: torch.dtype
    scale: float
    window: int
    soft_cap: float


@dataclass
class _Planned:
    """A wrapper, and the lengths of the step that it is planned for: kept, so that no others are they."""

    wrapper: Any
    seq_lens: Tensor | None = None


class FlashInferAttention:
    """Both attention operations of `twins`."""

    def __init__(self, device: torch.device, make_wrapper: MakeWrapper) -> None:
        self._workspace = torch.zeros(FLASHINFER_BYTES, dtype=torch.uint8, device=device)
        self._make_wrapper = make_wrapper
        self._planned: dict[_Kind, _Planned] = {}

    def decode(self, query: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> Tensor:
        """As `twins.decode_attention`."""
        _, _, table, seq_lens, scale, window, soft_cap, _, _ = rest
        starts = torch.arange(len(query) + 1, dtype=torch.int32)
        return self._attend(True, query, keys, values, table, starts, seq_lens, scale, window, soft_cap)

    def extend(self, query: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> Tensor:
        """As `twins.extend_attention`; sequences of no tile are computed, too."""
        _, _, table, starts, seq_lens, _, scale, window, soft_cap, _ = rest
        return self._attend(False, query, keys, values, table, starts, seq_lens, scale, window, soft_cap)

    def _attend(
        self,
        is_decode: bool,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        table: Tensor,
        starts: Tensor,
        seq_lens: Tensor,
        scale: float,
        window: int,
        soft_cap: float,
    ) -> Tensor:
        kind = _Kind(is_decode, query.shape[1], keys.shape, query.dtype, keys.dtype, scale, window, soft_cap)
        planned = self._planned.get(kind)
        if planned is None:
            planned = self._planned[kind] = _Planned(self._make_wrapper(self._workspace, "NHD"))
        if planned.seq_lens is not seq_lens:
            _plan(planned.wrapper, kind, starts, table, seq_lens)
            planned.seq_lens = seq_lens
        found: Tensor = planned.wrapper.run(query.contiguous(), (keys, values))
        return found


def _plan(wrapper: Any, kind: _Kind, starts: Tensor, table: Tensor, seq_lens: Tensor) -> None:
    """Blocks end to end, and how many tokens the last of each sequence holds. Waits for the device."""
    _, block_size, num_kv_heads, head_dim = kind.cache_shape
    lengths, rows = seq_lens.cpu(), table.cpu()
    counts = (lengths + block_size - 1) // block_size
    blocks = torch.cat([row[:count] for row, count in zip(rows, counts.tolist(), strict=True)])
    block_starts = torch.zeros(len(counts) + 1, dtype=torch.int32)
    block_starts[1:] = counts.cumsum(0)
    wrapper.plan(
        starts.cpu(),
        block_starts,
        blocks.to(table.device),
        (lengths - (counts - 1).clamp(min=0) * block_size).int(),
        kind.num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        causal=True,
        sm_scale=kind.scale,
        window_left=kind.window - 1 if kind.window else -1,
        logits_soft_cap=kind.soft_cap or None,
        q_data_type=kind.dtype,
        kv_data_type=kind.kv_dtype,
        o_data_type=kind.dtype,
    )
