"""How fast the queue moves, measured: what a refused client is told to wait."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

WINDOW = 64  # admissions that are looked back upon
MAX_RETRY_AFTER_S = 600
AT_ONCE_S = 0.05  # who is admitted so soon did not wait


class QueuePace:
    """Admissions a second, over the newest ones since the queue was last empty.

    While it is empty nothing is measured: an engine that nobody asks is not slow. Whoever comes first then is
    admitted at once, which tells nothing either: the time before counts as one admission beside it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=WINDOW)
        self._since_s = clock()  # before the oldest of them
        self._known: float | None = None  # of the time before

    def restart(self) -> None:
        """Somebody waits again."""
        elapsed_s = self._times[-1] - self._since_s if self._times else 0.0
        if elapsed_s > AT_ONCE_S:
            self._known = len(self._times) / elapsed_s
        self._times.clear()
        self._since_s = self._clock()

    def admitted(self) -> None:
        if len(self._times) == WINDOW:
            self._since_s = self._times[0]
        self._times.append(self._clock())

    def per_s(self) -> float | None:
        """None while nothing has been admitted yet."""
        elapsed_s = max(self._clock() - self._since_s, 1e-3)
        if self._known is None:
            return len(self._times) / elapsed_s if self._times else None
        if not self._times:
            # Nobody got through so far: at best as before, at worst one about now.
            return min(self._known, 1 / elapsed_s)
        return (len(self._times) + 1) / (elapsed_s + 1 / self._known)

    def retry_after_s(self, num_ahead: float) -> int:
        """Whole seconds in which so many are admitted at the present pace; 1 while that is not known."""
        per_s = self.per_s()
        if per_s is None:
            return 1
        return min(max(1, math.ceil(num_ahead / per_s)), MAX_RETRY_AFTER_S)
