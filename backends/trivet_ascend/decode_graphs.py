"""Decode steps captured once for a few numbers of sequences and replayed; anything else runs eagerly.

How a step is captured and replayed is the device's (`CapturesDecodes`). Here are the sizes, padding to the
next of them, and falling back to eager steps where a capture fails. No torch: plans count the sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trivet.counted import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from trivet.contract import Batch, Int32

logger = logging.getLogger(__name__)


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Numbers of sequences for which a decode is captured: 1, 2, 4 ... max_num_seqs.

    Few, because each takes memory, and on an NPU streams, of which it has about 2,000 (vllm-ascend #3869).
    """
    powers = [1 << i for i in range(max_num_seqs.bit_length()) if 1 << i < max_num_seqs]
    return (*powers, max_num_seqs)


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """One token of each sequence, padded to N sequences.

    A sequence of padding is token 0 at position 0 with one token in KV. It reads block 0, which is scratch,
    and writes there to a slot of its own, which some devices demand: so N may not exceed the block size.
    """

    num_seqs: int  # without padding
    token_ids: NDArray[np.int64]  # [N]
    positions: NDArray[np.int64]  # [N]
    slots: Int32  # [N] where a token's K and V go, block * block_size + offset
    seq_lens: Int32  # [N] tokens in KV after this step
    block_table: Int32  # [N, num_columns], 0 behind a sequence's blocks

    @classmethod
    def padded(
        cls, batch: Batch, token_ids: Int32, size: int, num_columns: int, block_size: int
    ) -> DecodeInputs:
        """Of a batch with one token a sequence, all `token_ids` known."""
        num_seqs, table = len(batch.slots), batch.block_tables[0]
        columns = np.zeros((size, num_columns), np.int32)
        width = min(table.shape[1], num_columns)
        columns[:num_seqs, :width] = table[:, :width]
        tokens, positions = np.zeros((2, size), np.int64)
        tokens[:num_seqs], positions[:num_seqs] = token_ids, batch.positions
        slots, seq_lens = np.arange(size, dtype=np.int32), np.ones(size, np.int32)
        blocks = table[np.arange(num_seqs), batch.positions // block_size]
        slots[:num_seqs] = blocks * block_size + batch.positions % block_size
        seq_lens[:num_seqs] = batch.seq_lens
        return cls(num_seqs, tokens, positions, slots, seq_lens, columns)


class CapturedDecode(Protocol):
    """A graph and the tensors that it reads and writes."""

    def replay(self, inputs: DecodeInputs) -> Tensor:
        """Hidden states [N, hidden_size], which the next replay overwrites."""


class CapturesDecodes(Protocol):
    """The device's part."""

    def capture(self, size: int) -> CapturedDecode:
        """A decode of `size` sequences. Raises: RuntimeError of torch."""


class DecodeGraphs:
    """Captured decode steps of one model."""

    def __init__(
        self,
        captures: CapturesDecodes,
        block_size: int,
        num_columns: int,
        cure_for: Callable[[str], str] = lambda text: "",
    ) -> None:
        """`num_columns` of a block table: blocks of the longest sequence."""
        self._captures, self._cure_for = captures, cure_for
        self._block_size, self._num_columns = block_size, num_columns
        self._captured: dict[int, CapturedDecode] = {}
        self.failure = ""  # why no step is captured

    @property
    def sizes(self) -> list[int]:
        """Those that were captured."""
        return sorted(self._captured)

    def capture(self, sizes: tuple[int, ...]) -> None:
        """All sizes, the largest first; the first failure ends it, and every step runs eagerly then."""
        for size in sorted(sizes, reverse=True):
            if size > self._block_size:  # see `DecodeInputs`
                continue
            try:
                self._captured[size] = self._captures.capture(size)
            except RuntimeError as error:
                self._captured.clear()
                text = f"{error}{self._cure_for(str(error))}"
                self.failure = f"no decode graph of {counted(size, 'sequence')} could be captured: {text}"
                logger.warning("graphs=off %s; steps run eagerly, slower", self.failure)
                return

    def run(self, batch: Batch, token_ids: Int32) -> Tensor | None:
        """Hidden states [T, hidden_size] of a step of decodes that fits a graph, else None."""
        num_seqs = len(batch.slots)
        if len(token_ids) != num_seqs:
            return None
        size = min((size for size in self._captured if size >= num_seqs), default=None)
        if size is None:
            return None
        inputs = DecodeInputs.padded(batch, token_ids, size, self._num_columns, self._block_size)
        return self._captured[size].replay(inputs)[:num_seqs]

    def close(self) -> None:
        """Give the graphs' memory back."""
        self._captured.clear()
