"""When a request is sent once more: only where the server has certainly not begun with it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

FIRST_WAIT_S = 0.1  # after a connection that was refused; doubled each time
REFUSED = (429, 503)
MOST_DIGITS = 15  # of seconds; more are no time that anybody means


@dataclass(frozen=True, slots=True)
class Retries:
    """Who could not connect, or was answered 429 or 503 with Retry-After, tries again, `max_retries` times.

    An answer without Retry-After, a broken connection and a timeout are no reason: the request may have had
    its effect. A wait that is longer than `longest_wait_s` is left to the caller, who gets the error.
    """

    max_retries: int
    longest_wait_s: float
    draw: Callable[[], float] = random.random  # 0 to 1, so that many who were refused do not return at once

    def after_no_connection(self, num_done: int) -> float | None:
        """Seconds until the next attempt; None: there is none."""
        if num_done >= self.max_retries:
            return None
        wait_s = FIRST_WAIT_S * float(1 << num_done)
        return min(self.longest_wait_s, wait_s) * (0.5 + self.draw() / 2)

    def after_refusal(self, num_done: int, status: int, headers: Mapping[str, str]) -> float | None:
        """Seconds until the next attempt, never fewer than the server said; None: there is none."""
        wait_s = retry_after_s(headers)
        if wait_s is None or status not in REFUSED:
            return None
        if num_done >= self.max_retries or wait_s > self.longest_wait_s:
            return None
        return wait_s + FIRST_WAIT_S * self.draw()


def retry_after_s(headers: Mapping[str, str], now_s: Callable[[], float] = time.time) -> float | None:
    """What Retry-After says, in seconds or as a date; None where it says nothing that can be read."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdigit():
        return float(text) if len(text) <= MOST_DIGITS else None
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s())
    except (ValueError, OverflowError):
        return None
