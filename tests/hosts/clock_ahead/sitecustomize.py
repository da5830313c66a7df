"""On the path of a host, whose wall clock then is an hour ahead of the site's."""

from __future__ import annotations

import time
from collections.abc import Callable

AHEAD_S = 3600


def ahead(clock: Callable[[], float], ticks_per_s: int) -> Callable[[], float]:
    return lambda: clock() + AHEAD_S * ticks_per_s


time.time = ahead(time.time, 1)
time.time_ns = ahead(time.time_ns, 10**9)
