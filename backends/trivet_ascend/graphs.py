"""Decode steps captured as ACL graphs, one for a few numbers of sequences; anything else runs eagerly.

Attention takes its lengths as host integers, which a capture bakes in. torch-npu renews them by name before
a replay (`update`); a name it does not know would be ignored, so the one used here is the operation's own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trivet_ascend.explanations import cure_for
from trivet_ascend.paged_kv import StepView

if TYPE_CHECKING:
    from collections.abc import Callable

    from trivet.contract import Batch, Int32

    Forward = Callable[[Tensor, Tensor, StepView], Tensor]

logger = logging.getLogger(__name__)
LENGTHS = "actual_seq_lengths_kv"


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph and the tensors it reads and writes."""

    graph: Any
    token_ids: Tensor
    positions: Tensor
    view: StepView
    hidden: Tensor


class DecodeGraphs:
    """Captured decode steps of one model."""

    def __init__(self, forward: Forward, block_size: int, num_columns: int, device: torch.device) -> None:
        """`num_columns` of a block table: blocks of the longest sequence."""
        self._forward, self._block_size, self._num_columns = forward, block_size, num_columns
        self._device = device
        self._captured: dict[int, _Captured] = {}

    def capture(self, sizes: tuple[int, ...]) -> None:
        """All sizes, the largest first; the first failure ends it, and every step runs eagerly then."""
        for size in sorted(sizes, reverse=True):
            if size > self._block_size:  # padding writes to distinct slots of the one scratch block
                continue
            try:
                self._captured[size] = self._capture(size)
            except RuntimeError as error:
                self._captured.clear()
                logger.warning(
                    "graphs=off no decode graph of %d sequences could be captured: %s%s; steps run eagerly",
                    size,
                    error,
                    cure_for(str(error)),
                )
                return

    def _capture(self, size: int) -> _Captured:
        npu: Any = torch.npu  # type: ignore[attr-defined]  # torch-npu puts it there
        device = self._device
        token_ids, positions = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
        view = StepView(
            slots=torch.arange(size, dtype=torch.int32, device=device),
            block_table=torch.zeros((size, self._num_columns), dtype=torch.int32, device=device),
            query_ends=list(range(1, size + 1)),
            seq_lens=[1] * size,
        )
        with torch.inference_mode():
            self._forward(token_ids, positions, view)  # what is made once must not be made in the graph
            graph = npu.NPUGraph()
            with npu.graph(graph, auto_dispatch_capture=True):
                hidden = self._forward(token_ids, positions, view)
        return _Captured(graph, token_ids, positions, view, hidden)

    def run(self, batch: Batch, token_ids: Int32) -> Tensor | None:
        """Hidden states [T, hidden_size] of a step of decodes that fits a graph, else None."""
        num_seqs = len(batch.slots)
        if len(token_ids) != num_seqs:
            return None
        size = min((size for size in self._captured if size >= num_seqs), default=None)
        if size is None:
            return None
        captured = self._captured[size]
        with torch.inference_mode():
            self._fill(captured, batch, token_ids, size)
            lengths = [*batch.seq_lens.tolist(), *([1] * (size - num_seqs))]
            captured.graph.update(cpu_update_input=[{LENGTHS: lengths}])
            captured.graph.replay()
            return captured.hidden[:num_seqs]

    def _fill(self, captured: _Captured, batch: Batch, token_ids: Int32, size: int) -> None:
        """Padding: token 0 in scratch, each in a slot of its own behind those of no sequence."""
        num_seqs, table = len(batch.slots), batch.block_tables[0]
        columns = np.zeros((size, self._num_columns), np.int32)
        columns[:num_seqs, : table.shape[1]] = table[:, : self._num_columns]
        tokens, positions = np.zeros((2, size), np.int64)
        tokens[:num_seqs], positions[:num_seqs] = token_ids, batch.positions
        slots = np.arange(size, dtype=np.int32)
        blocks = table[np.arange(num_seqs), batch.positions // self._block_size]
        slots[:num_seqs] = blocks * self._block_size + batch.positions % self._block_size
        for target, source in (
            (captured.token_ids, tokens),
            (captured.positions, positions),
            (captured.view.slots, slots),
            (captured.view.block_table, columns),
        ):
            target.copy_(torch.from_numpy(source))

    def close(self) -> None:
        """Give the graphs' streams and memory back."""
        self._captured.clear()
