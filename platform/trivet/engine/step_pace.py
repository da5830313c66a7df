"""How long the next step may take before it counts as stalled, judged by those before it."""

from __future__ import annotations

STALL_FACTOR = 10  # a step that takes so many times as long as the slowest of late has stalled
MIN_STALL_S = 2.0  # but not before this: a first long prompt takes longer than all steps before it
FORGETTING = 0.99  # by step: a slow one counts for a few hundred


class StepPace:
    """Remembers the slowest step of late."""

    def __init__(self) -> None:
        self._slowest_s = 0.0

    def observe(self, step_s: float) -> None:
        self._slowest_s = max(FORGETTING * self._slowest_s, step_s)

    def due_s(self, started_s: float) -> float:
        """When a step that began at `started_s` has stalled."""
        return started_s + max(MIN_STALL_S, STALL_FACTOR * self._slowest_s)
