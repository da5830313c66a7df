"""Choices of where instances run, each on a thread of its own.

A backend or a file system may hang, and the ends and stops of others must not wait for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from trivet.engine.ledger import Ledger
from trivet.engine.placement import Placement
from trivet.errors import Unavailable
from trivet_supervisor.threaded_call import ThreadedCall

PATIENCE_S = 0.25  # for one choice in one turn; most take milliseconds

Chosen: TypeAlias = tuple[Placement, Mapping[str, str]]  # where, and the environment that it wants


class StillPlacing(Exception):
    """The choice goes on; a later turn takes it."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """One call into strangers' code, which may never return."""

    call: ThreadedCall[Chosen]
    ledger: Ledger


class Placing:
    """At most one choice an instance."""

    def __init__(self, clock: Callable[[], float], limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._choices: dict[str, _Choice] = {}
        self._hung: dict[str, _Choice] = {}  # given up, while their threads are there

    def take(self, instance_id: str, ledger: Ledger, choose: Callable[[], Chosen]) -> Chosen:
        """The answer of `choose`, which is begun where none is under way.

        Raises: StillPlacing after `PATIENCE_S`; Unavailable after the limit; what `choose` raises.
        """
        if self._hangs(instance_id):  # one more thread would hang, too
            raise Unavailable(f"its last placing, given up after {self._limit_s:g} s, still hangs")
        choice = self._choices.get(instance_id)
        if choice is None or (choice.call.has_answered and ledger.has_more_than(choice.ledger)):
            choice = _Choice(ThreadedCall("placing", choose, self._clock()), ledger)
            self._choices[instance_id] = choice
        is_under_way = choice.call.is_under_way(PATIENCE_S)
        if is_under_way and not self._is_late(choice):
            raise StillPlacing
        del self._choices[instance_id]
        if is_under_way:
            self._hung[instance_id] = choice
            raise Unavailable(
                f"placing took more than {self._limit_s:g} s; its backend or a file system may hang"
            )
        return choice.call.result()

    def is_under_way(self, instance_id: str) -> bool:
        """Whether there is nothing to take yet."""
        choice = self._choices.get(instance_id)
        return choice is not None and choice.call.is_under_way() and not self._is_late(choice)

    def has_news(self) -> bool:
        """Whether one is to be taken that did not end in its first turn."""
        return any(not self.is_under_way(instance_id) for instance_id in self._choices)

    def forget(self, instance_id: str) -> None:
        """It is wanted no more, wherever it would have been."""
        self._choices.pop(instance_id, None)

    def _hangs(self, instance_id: str) -> bool:
        self._hung = {key: choice for key, choice in self._hung.items() if choice.call.is_under_way()}
        return instance_id in self._hung

    def _is_late(self, choice: _Choice) -> bool:
        return self._clock() - choice.call.since_s > self._limit_s
