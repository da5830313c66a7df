"""Which sequences have a deadline, the nearest first; its cost does not depend on how many there are."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from trivet.engine.sequence import Sequence, SequenceState

SPARE_ENTRIES = 64  # of ended sequences, that may stay before the heap is made anew


class Deadlines:
    """A heap whose ended entries are dropped lazily."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []  # when, arrival, who
        self._limit = SPARE_ENTRIES

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: Sequence) -> None:
        """Without effect for one that has no deadline."""
        if sequence.deadline_s is None:
            return
        heapq.heappush(self._heap, (sequence.deadline_s, sequence.arrival, sequence))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if _lives(entry[2])]
            heapq.heapify(self._heap)
            self._limit = 2 * len(self._heap) + SPARE_ENTRIES

    def passed(self, now_s: float) -> Iterator[Sequence]:
        """Living sequences whose deadline is over; each once."""
        while self._heap and self._heap[0][0] <= now_s:
            sequence = heapq.heappop(self._heap)[2]
            if _lives(sequence):
                yield sequence


def _lives(sequence: Sequence) -> bool:
    return sequence.state is not SequenceState.FINISHED
