"""Whether anybody acts on what a command shows or waits for: without its supervisor nothing changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from trivet.commands.output import note

if TYPE_CHECKING:
    from trivet.client import Client, Status

LOOK_INTERVAL_S = 5.0


def why_stale(status: Status) -> str:
    """Why states may be old; empty where they are not."""
    if not status.supervisor.up:
        as_of = status.supervisor.as_of
        when = f"as of {as_of:%H:%M:%S} UTC" if as_of else "of an unknown time"
        return f"the supervisor does not answer: these states are {when}, and nothing is started or ended"
    if status.supervisor.problem:
        return f"the supervisor cannot do its work ({status.supervisor.problem}): these states may be old"
    return ""


class StalenessWatch:
    """For one who waits: says when the supervisor is away, and when it is back."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._next_s = clock() + LOOK_INTERVAL_S
        self._is_told = False

    def turn(self) -> None:
        """Asks the server once in a while."""
        if self._clock() < self._next_s:
            return
        why = why_stale(self._client.status())
        self._next_s = self._clock() + LOOK_INTERVAL_S
        if bool(why) != self._is_told:
            self._is_told = bool(why)
            note(why or "the supervisor answers again")
