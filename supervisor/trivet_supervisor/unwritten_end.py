"""Ends engines while the registry cannot be written: a full disk must not keep `serve` from its end."""

from __future__ import annotations

from collections.abc import Mapping

from trivet.messages import Drain, Stop
from trivet_supervisor.instance_watch import Watched
from trivet_supervisor.means import Means


class UnwrittenEnd:
    """Drain, Stop, SIGTERM, SIGKILL, each in its time. The next supervisor finds the rows and no process."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._since_s: float | None = None

    def press(self, engines: Mapping[str, Watched], drain_timeout_s: float) -> bool:
        """Go one step further with each; called again and again. True when all have ended."""
        now = self._means.clock()
        if self._since_s is None:
            self._since_s = now
        living = {key: each for key, each in engines.items() if not self._is_over(each)}
        for instance_id, watched in living.items():
            self._press_one(instance_id, watched, drain_timeout_s, now, now - self._since_s)
        return not living

    def _is_over(self, watched: Watched) -> bool:
        """Has ended, or was told to and is where nobody answers: it is ended when its host is back."""
        return watched.handle.exit_code() is not None or (
            watched.killed_s is not None and bool(watched.handle.unreachable())
        )

    def _press_one(
        self, instance_id: str, watched: Watched, drain_timeout_s: float, now: float, since_s: float
    ) -> None:
        limits, wire = self._means.limits, self._means.wire
        stop_s = drain_timeout_s + (limits.drain_grace_s if drain_timeout_s else 0.0)
        if since_s < stop_s:
            wire.tell(instance_id, Drain(watched.lease, max(0.0, drain_timeout_s - since_s)))
        elif since_s < stop_s + limits.stop_s:
            wire.tell(instance_id, Stop(watched.lease))
        elif since_s < stop_s + limits.stop_s + limits.terminate_s:
            watched.handle.terminate()
        else:
            watched.killed_s = watched.killed_s or now
            watched.handle.kill()
