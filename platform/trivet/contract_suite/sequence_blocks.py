"""Which sequences the driver has, and the KV blocks and slots that are theirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trivet.contract import BlockCopy, MemoryPlan
from trivet.contract_suite.steps import DrivenSequence

Int32 = NDArray[np.int32]


class SequenceBlocks:
    """Block ids are shuffled, and a freed block is the next to be given away."""

    def __init__(self, plan: MemoryPlan, max_num_seqs: int, seed: int) -> None:
        self.plan = plan
        self.max_num_seqs = max_num_seqs
        self.block_size = plan.kv.block_size
        self._random = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Forget all sequences; what they left in the KV blocks stays there, as it does in service."""
        self.free_blocks = [
            [int(block) for block in self._random.permutation(np.arange(1, count))]
            for count in self.plan.num_blocks
        ]
        self.free_slots = [int(slot) for slot in self._random.permutation(self.max_num_seqs)]

    def add(self, token_ids: Iterable[int], adapter: int = 0) -> DrivenSequence:
        """A new sequence; its blocks come as its tokens are submitted."""
        tokens = [int(token) for token in token_ids]
        return DrivenSequence(tokens, self.free_slots.pop(), [[] for _ in self.free_blocks], adapter)

    def fork(self, parent: DrivenSequence, token_ids: Iterable[int], num_shared: int) -> DrivenSequence:
        """A new sequence that reads the first `num_shared` blocks of the parent: a prefix-cache hit."""
        child = self.add(token_ids)
        child.blocks = [blocks[:num_shared] for blocks in parent.blocks]
        child.num_computed = num_shared * self.block_size
        assert child.token_ids[: child.num_computed] == parent.token_ids[: child.num_computed]
        return child

    def copy_blocks(self, source: DrivenSequence, target: DrivenSequence) -> tuple[BlockCopy, ...]:
        """Give `target` blocks of its own and the copies that fill them from the source's."""
        self.grow(target, len(source.blocks[0]) * self.block_size)
        target.num_computed = source.num_computed
        return tuple(
            BlockCopy(group, from_host=False, to_host=False, pairs=_pairs(old, new))
            for group, (old, new) in enumerate(zip(source.blocks, target.blocks, strict=True))
        )

    def swap_out(self, sequence: DrivenSequence, host_blocks: Sequence[int]) -> tuple[BlockCopy, ...]:
        """Give its blocks and its slot away, and the copies that save them on the host."""
        copies = tuple(
            BlockCopy(group, from_host=False, to_host=True, pairs=_pairs(blocks, host_blocks))
            for group, blocks in enumerate(sequence.blocks)
        )
        self.drop(sequence)
        return copies

    def swap_in(self, sequence: DrivenSequence, host_blocks: Sequence[int]) -> tuple[BlockCopy, ...]:
        """Give it blocks and a slot again, and the copies that fill them from the host."""
        sequence.slot = self.free_slots.pop(0)
        self.grow(sequence, len(host_blocks) * self.block_size)
        return tuple(
            BlockCopy(group, from_host=True, to_host=False, pairs=_pairs(host_blocks, blocks))
            for group, blocks in enumerate(sequence.blocks)
        )

    def drop(self, sequence: DrivenSequence) -> None:
        """Abort or end: its blocks are the next to be given away."""
        for free, blocks in zip(self.free_blocks, sequence.blocks, strict=True):
            free.extend(blocks)
        self.free_slots.append(sequence.slot)
        sequence.blocks = [[] for _ in self.free_blocks]

    def preempt(self, sequence: DrivenSequence) -> None:
        """Take its blocks and its slot; it starts over with all its tokens (recompute)."""
        self.drop(sequence)
        sequence.num_computed = 0
        sequence.slot = self.free_slots.pop(0)

    def grow(self, sequence: DrivenSequence, num_tokens: int) -> None:
        """Blocks for so many tokens."""
        for free, blocks in zip(self.free_blocks, sequence.blocks, strict=True):
            while len(blocks) * self.block_size < num_tokens:
                blocks.append(free.pop())


def _pairs(sources: Sequence[int], targets: Sequence[int]) -> Int32:
    return np.array([sources, targets], np.int32).T.copy()
