"""Engines that somebody else stops, again and again: what replaces them waits longer each time.

Who sends SIGTERM to an engine (a person, a daemon that makes room when memory runs out) ends it in order, so
it is no failure of the engine's and is replaced at once. A daemon does the same with the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trivet_registry.tables import Deployment
from trivet_supervisor.backoff import Backoff


@dataclass(slots=True)
class _Stops:
    count: int  # in a row
    until_s: float  # nothing of the deployment is started before


class OutsideStops:
    """Counts them for each generation of a deployment; a launch or an update counts anew."""

    def __init__(self, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._stops: dict[tuple[int, int], _Stops] = {}

    def count(self, deployment: Deployment, ready_since_s: float | None) -> None:
        """One was stopped, ready since then or not yet; several at one time count once."""
        now, key = self._clock(), _key(deployment)
        before = self._stops.get(key)
        if before is not None and now <= before.until_s:
            return
        was_stable = ready_since_s is not None and now - ready_since_s > self._backoff.stable_s
        count = 1 if before is None or was_stable else before.count + 1
        delay_s = self._backoff.delay_s(count - 1) if count > 1 else 0.0
        self._stops[key] = _Stops(count, now + delay_s)

    def wait_s(self, deployment: Deployment) -> float:
        """Seconds until what replaces the last one may start; 0: now."""
        stops = self._stops.get(_key(deployment))
        return 0.0 if stops is None else max(0.0, stops.until_s - self._clock())

    def why_wait(self, deployment: Deployment) -> str | None:
        """Of an instance that has to wait."""
        wait_s = self.wait_s(deployment)
        if not wait_s:
            return None
        count = self._stops[_key(deployment)].count
        return f"starts in {wait_s:.2g} s: someone else has stopped its engine {count} times in a row"


def _key(deployment: Deployment) -> tuple[int, int]:
    return deployment.id, deployment.generation
