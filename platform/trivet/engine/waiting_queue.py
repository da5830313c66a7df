"""Sequences that wait for admission: most urgent first, then first come, first served.

A heap whose entries are removed lazily: nothing here takes longer because many are waiting.
"""

from __future__ import annotations

import heapq

from trivet.engine.sequence import Sequence


class WaitingQueue:
    """A priority queue of sequences by `Sequence.order`; a preempted one gets its old place back."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._members: set[Sequence] = set()
        self.num_tokens = 0  # prompt and completion tokens that its members may still need

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._members

    def push(self, sequence: Sequence) -> None:
        self._members.add(sequence)
        self.num_tokens += sequence.max_total_tokens
        heapq.heappush(self._heap, (sequence.order, sequence))

    def head(self) -> Sequence | None:
        """The next one to be admitted."""
        while self._heap and self._heap[0][1] not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        """Raises: KeyError where it does not wait."""
        self._members.remove(sequence)
        self.num_tokens -= sequence.max_total_tokens
        if len(self._heap) > 2 * len(self._members) + 64:  # mostly aborted ones that never reached the head
            self._heap = [entry for entry in self._heap if entry[1] in self._members]
            heapq.heapify(self._heap)
