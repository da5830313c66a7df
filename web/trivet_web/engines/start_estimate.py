"""How soon a deployment that starts can be asked again, as Retry-After tells its clients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

LONGEST_S = 60  # for which OpenAI's client waits; after more it asks at once
SOON_S = 5.0  # `pending` for longer, it waits for room, and nobody knows how long
LEAST_S = {"pending": 5, "placing": 4, "starting": 3, "loading": 2, "warming": 1}  # from there to ready


class Starting(Protocol):
    """An instance on its way."""

    @property
    def state(self) -> str: ...

    @property
    def in_state_s(self) -> float: ...

    @property
    def loaded(self) -> float:
        """Share of its weights, 0 to 1."""
        ...


def seconds_until_ready(instances: Iterable[Starting]) -> int | None:
    """Until the first of them may be ready; None where none is on its way, or nobody knows.

    A state is taken to last as long again as it has so far, `loading` as long as its progress says.
    """
    waits = [wait_s for one in instances if (wait_s := _wait_s(one)) is not None]
    return min(waits, default=None)


def _wait_s(one: Starting) -> int | None:
    if one.state not in LEAST_S or (one.state == "pending" and one.in_state_s > SOON_S):
        return None
    left_s = one.in_state_s
    if one.state == "loading" and one.loaded > 0:
        left_s *= (1 - min(one.loaded, 1.0)) / one.loaded
    return max(LEAST_S[one.state], min(LONGEST_S, math.ceil(left_s)))
