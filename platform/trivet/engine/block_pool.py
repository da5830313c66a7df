"""The paged KV cache's bookkeeping: who holds which block, and which blocks hold a known prefix.

A block is blank, held by one sequence or more, or evictable: free, but remembered by the key of what it
holds until somebody needs the room. Block 0 is the contract's scratch block and never given out.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence as Keys
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trivet.contract import Int32


class BlockPool:
    """Blocks of one plan. Sequences are known by their slots.

    Every operation is O(1) a block. `table` [max_num_seqs, blocks a sequence may have] holds each slot's
    blocks in order, padded with 0, ready to be copied into a batch.
    """

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int) -> None:
        self.block_size = block_size
        self.num_usable = num_blocks - 1
        self.table: Int32 = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)
        self._num_held = [0] * max_num_seqs  # blocks in each row of the table
        self._num_holders = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, 0, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._unconfirmed: deque[tuple[int, bytes]] = deque()  # step and key of what it may have filled

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._evictable)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, 0 to 1."""
        return 1.0 - self.num_free / self.num_usable

    # ---- holding ----

    def find(self, keys: Keys[bytes]) -> list[int]:
        """Blocks that hold the longest known prefix."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def can_open(self, cached: list[int], num_tokens: int, spare: int = 0) -> bool:
        """Whether `open` has the room, with `spare` blocks left over."""
        revived = sum(block in self._evictable for block in cached)
        needed = -(-num_tokens // self.block_size) - len(cached)
        return needed + revived + spare <= self.num_free

    def open(self, slot: int, cached: list[int], num_tokens: int) -> None:
        """Give a slot its first blocks: the cached ones, shared, and new ones up to `num_tokens`."""
        assert self._num_held[slot] == 0, f"slot {slot} is in use"
        for block in cached:
            self._evictable.pop(block, None)
            self._num_holders[block] += 1
        self.table[slot, : len(cached)] = cached
        self._num_held[slot] = len(cached)
        grown = self.grow(slot, num_tokens)
        assert grown, "open without can_open"

    def grow(self, slot: int, num_tokens: int) -> bool:
        """Make room for a sequence of `num_tokens`. False, and nothing changed, where there is none."""
        held = self._num_held[slot]
        if num_tokens <= held * self.block_size:
            return True
        needed = -(-num_tokens // self.block_size) - held
        if needed > self.num_free:
            return False
        self.table[slot, held : held + needed] = [self._take() for _ in range(needed)]
        self._num_held[slot] = held + needed
        return True

    def num_places(self, slot: int) -> int:
        """Tokens for which the slot's blocks have room."""
        return self._num_held[slot] * self.block_size

    def num_holders(self, block: int) -> int:
        """Sequences that share it."""
        return self._num_holders[block]

    def is_cached(self, block: int) -> bool:
        """Whether nobody holds it, and it is remembered for what it holds."""
        return block in self._evictable

    def close(self, slot: int) -> None:
        """Take a slot's blocks back. The end of a prefix is evicted before its beginning."""
        held = self._num_held[slot]
        for block in reversed(self.table[slot, :held].tolist()):
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                if block in self._key_of:
                    self._evictable[block] = None
                else:
                    self._blank.append(block)
        self.table[slot, :held] = 0
        self._num_held[slot] = 0

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
        self._num_holders[block] = 1
        return block

    # ---- prefix cache ----

    def publish(self, slot: int, first: int, keys: Keys[bytes], step: int) -> None:
        """Let others find a slot's full blocks from index `first` on.

        Args:
            step: the newest submitted step; until it is confirmed the content is a promise.
        """
        for block, key in zip(self.table[slot, first : first + len(keys)].tolist(), keys, strict=True):
            if key not in self._block_of:  # else two sequences computed the same; one copy is enough
                self._block_of[key] = block
                self._key_of[block] = key
                self._unconfirmed.append((step, key))

    def confirm(self, step: int) -> None:
        """The step has succeeded: what it filled stays."""
        while self._unconfirmed and self._unconfirmed[0][0] <= step:
            self._unconfirmed.popleft()

    def withdraw_unconfirmed(self) -> None:
        """A step has failed: forget all that was published since the last one that succeeded."""
        while self._unconfirmed:
            _, key = self._unconfirmed.popleft()
            self._forget(key)

    def withdraw(self, keys: Keys[bytes]) -> None:
        """Forget what these keys name, because it is suspect."""
        for key in keys:
            self._forget(key)

    def reset_cache(self) -> int:
        """Forget every prefix; sequences keep what they hold. Returns the number of blocks."""
        keys = list(self._block_of)
        for key in keys:
            self._forget(key)
        return len(keys)

    def _forget(self, key: bytes) -> None:
        block = self._block_of.pop(key, None)
        if block is None:  # evicted meanwhile, or never published
            return
        del self._key_of[block]
        if block in self._evictable:
            del self._evictable[block]
            self._blank.append(block)

    # ---- checks ----

    def check_integrity(self) -> None:
        """Raises: AssertionError naming the block whose books disagree."""
        held = Counter(
            block for slot, count in enumerate(self._num_held) for block in self.table[slot, :count].tolist()
        )
        blank, evictable = set(self._blank), set(self._evictable)
        assert len(blank) == len(self._blank), "a block is blank twice"
        assert not blank & evictable, f"blank and evictable: {blank & evictable}"
        num_held = sum(num_holders > 0 for num_holders in self._num_holders)
        assert len(blank) + len(evictable) + num_held == self.num_usable, "blank, cached and held are not all"
        for block, num_holders in enumerate(self._num_holders):
            assert held[block] == num_holders, (
                f"block {block}: {num_holders} holders, {held[block]} in tables"
            )
            is_free = block in blank or block in evictable
            assert is_free == (num_holders == 0 and block > 0), f"block {block} is lost or held while free"
            assert block not in blank or block not in self._key_of, f"blank block {block} has a key"
            assert block not in evictable or block in self._key_of, f"evictable block {block} has no key"
        assert self._block_of == {key: block for block, key in self._key_of.items()}, "keys disagree"
        for slot, count in enumerate(self._num_held):
            row = self.table[slot]
            assert (row[:count] > 0).all(), f"slot {slot} holds block 0"
            assert not row[count:].any(), f"slot {slot}: the table goes on after its {count} blocks"
