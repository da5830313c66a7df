"""Decode steps captured as graphs, one for each bucket of sequences; anything else runs eagerly.

A decode step of a small model is hundreds of launches of a few microseconds each, and a replayed graph is
one. Before a replay the step's arrays go into the buffer that the graph was captured with; rows up to the
bucket write no KV and have no length. Of the table only what the step has is copied (at 131,072 tokens and
256 sequences all of it is 8 MB): behind that stand block ids of steps before, which a kernel masks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trivet.contract import Batch
from trivet.counted import counted
from trivet_cuda.device import Capture, Captured
from trivet_cuda.failures import cure_for, is_out_of_memory
from trivet_cuda.step_view import StepView, padded_arrays
from trivet_cuda.upload import layout, packed, upload, upload_into, views

if TYPE_CHECKING:
    from numpy.typing import NDArray

Forward = Callable[[StepView], Tensor]
HaveAll = Callable[[bool], bool]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A captured step of so many sequences."""

    captured: Captured
    buffer: Tensor  # int32, all arrays but the table, of the shared buffer
    block_table: Tensor  # [size, num_columns], the first rows of the shared table


class DecodeGraphs:
    """Captured decode steps of one model."""

    def __init__(
        self, forward: Forward, capture: Capture, block_size: int, num_columns: int, device: torch.device
    ) -> None:
        """`num_columns` of a block table: blocks of the longest sequence."""
        self._forward, self._capture, self._device = forward, capture, device
        self._block_size, self._num_columns = block_size, num_columns
        self._buffer = self._table = torch.zeros(0, dtype=torch.int32)
        self._buckets: dict[int, _Bucket] = {}
        self.failure = ""  # why no step is captured

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(sorted(self._buckets))

    def capture(self, sizes: tuple[int, ...], have_all: HaveAll = lambda succeeded: succeeded) -> None:
        """All sizes, the largest first, whose memory the others reuse.

        The first failure ends it, and every step runs eagerly then. `have_all` tells of each size whether
        every rank has it: a rank without graphs beside others with them would leave those in a collective.

        Raises: RuntimeError of torch for lack of memory.
        """
        most = max(sizes)
        size_of_all = layout(padded_arrays(_no_batch(), self._block_size, most))[1]
        self._buffer = torch.zeros(size_of_all, dtype=torch.int32, device=self._device)
        # Its rows are at one place for every bucket, so that what stands there is always ids of blocks.
        self._table = torch.zeros((most, self._num_columns), dtype=torch.int32, device=self._device)
        for size in sorted(sizes, reverse=True):
            reason = "another rank could not, whose log tells why"
            try:
                self._buckets[size] = self._capture_one(size)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    have_all(False)
                    raise
                reason = f"{error}{cure_for(str(error))}"
            if not have_all(size in self._buckets):
                self._buckets.clear()
                self.failure = f"no graph of {counted(size, 'sequence')} could be captured: {reason}"
                logger.warning("graphs=off %s; steps run eagerly, slower", self.failure)
                return

    def _capture_one(self, size: int) -> _Bucket:
        arrays, table = padded_arrays(_no_batch(), self._block_size, size), self._table[:size]
        host, starts = packed(arrays, pinned=False)
        buffer = self._buffer[: len(host)]
        buffer.copy_(host)
        view = StepView.over({**views(buffer, arrays, starts), "block_table": table}, size, size)
        with torch.inference_mode():
            self._forward(view)  # kernels are compiled, and what is made once is made outside the graph
            captured = self._capture(lambda: self._forward(view))
        return _Bucket(captured, buffer, table)

    def run(self, batch: Batch) -> Tensor | None:
        """Hidden states [S, hidden_size] of a step of decodes that fits a bucket, else None.

        They are the graph's own and hold until the next run.
        """
        num_seqs = len(batch.slots)
        if len(batch.token_ids) != num_seqs or not num_seqs:
            return None
        size = min((size for size in self._buckets if size >= num_seqs), default=None)
        if size is None:
            return None
        bucket = self._buckets[size]
        upload_into(bucket.buffer, padded_arrays(batch, self._block_size, size))
        # Columns behind a sequence's blocks are padding of the batch: they may be left out.
        table = batch.block_tables[0][:, : self._num_columns]
        held = bucket.block_table[:num_seqs, : table.shape[1]]
        held.copy_(upload({"table": table}, self._device)["table"])
        bucket.captured.replay()
        return bucket.captured.output[:num_seqs]

    def close(self) -> None:
        """Let go of the graphs and their buffers."""
        self._buckets.clear()
        self._buffer = self._table = torch.zeros(0, dtype=torch.int32)


def idle_arrays(size: int, block_size: int, num_columns: int) -> dict[str, NDArray[Any]]:
    """Of a step of `size` rows that are all padding; the table last."""
    return {
        **padded_arrays(_no_batch(), block_size, size),
        "block_table": np.zeros((size, num_columns), np.int32),
    }


def _no_batch() -> Batch:
    none, table = np.zeros(0, np.int32), np.zeros((0, 1), np.int32)
    return Batch(0, none, np.zeros(1, np.int32), none, (table,), none, none, none, none)
