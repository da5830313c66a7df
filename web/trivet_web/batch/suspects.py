"""Lines under which their engine ended: each may be the reason, or only have been beside it.

One of them is asked at a time, of all batches: so a line loses its engine again through itself, not through
another of them. Counted in memory: a server that starts anew gives each its chances back.
"""

from __future__ import annotations

from trivet_web.answers.answer import MAX_ATTEMPTS


class Suspects:
    """Lines by batch and index. Of one thread."""

    def __init__(self) -> None:
        self._num_losses: dict[tuple[str, int], int] = {}
        self._asked: tuple[str, int] | None = None  # the one that is under way

    def may_ask(self, batch_id: str, index: int) -> bool:
        """Whether the line may be asked now; if so, it is under way until `came_back`."""
        if (batch_id, index) not in self._num_losses:
            return True
        if self._asked is None:
            self._asked = (batch_id, index)
            return True
        return False

    def came_back(self, batch_id: str, index: int) -> None:
        """However it did."""
        if self._asked == (batch_id, index):
            self._asked = None

    def lost(self, batch_id: str, index: int) -> bool:
        """Its engine ended. Returns whether it has had all of its chances."""
        num_losses = self._num_losses.pop((batch_id, index), 0) + 1
        if num_losses >= MAX_ATTEMPTS:
            return True
        self._num_losses[batch_id, index] = num_losses
        return False

    def cleared(self, batch_id: str, index: int) -> None:
        """It was answered."""
        self._num_losses.pop((batch_id, index), None)

    def forget(self, batch_id: str) -> None:
        """The batch has ended."""
        self._num_losses = {line: count for line, count in self._num_losses.items() if line[0] != batch_id}
