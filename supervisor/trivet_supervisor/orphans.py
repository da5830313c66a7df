"""Engines of this home that the registry does not know, as after it was restored from a backup or deleted.

They hold memory that nobody counts, and nobody else would ever end them. The order of each, as its
launcher lists it, names its lease; who carries it is ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from trivet.launching import EngineHandle, PlacesOnHosts
from trivet.messages import LaunchOrder
from trivet_registry.events_store import record_event
from trivet_registry.fences_store import list_fences
from trivet_registry.instance_state import PROCESS_STATES
from trivet_registry.instances_store import list_instances
from trivet_supervisor.means import Means
from trivet_supervisor.threaded_call import ThreadedCall

logger = logging.getLogger(__name__)

SIGTERM_S = 5.0  # from SIGTERM to SIGKILL
SIGKILL_S = 2.0  # until a process is gone whose end nothing holds up
LOOK_INTERVAL_S = 0.05
ORPHANS_INTERVAL_S = 30.0  # for orders that no host was silent for


def end_orphans(means: Means) -> int:
    """End them, within `SIGTERM_S + SIGKILL_S` once they are known. Returns how many there were.

    Of those on other hosts the launcher may wait to hear: then this is for a thread of its own.
    """
    orphans: list[tuple[LaunchOrder, EngineHandle]] = []
    orders = means.launcher.orders()
    with means.database.reading() as session:  # after them: a lease is written down before its order is
        known = {instance.lease for instance in list_instances(session, states=PROCESS_STATES)}
        known |= {fence.lease for fence in list_fences(session)}
    for order in orders:
        if order.lease in known:
            continue
        handle = means.launcher.find(order.lease)
        if handle is None:
            means.launcher.discard(order.instance_id, order.lease)
        else:
            orphans.append((order, handle))
    end_handles([handle for _, handle in orphans], SIGTERM_S)
    for order, handle in orphans:  # whether or not it can be written down
        has_ended = handle.exit_code() is not None
        if has_ended:  # else its order stays, by which the next serve finds it
            means.launcher.discard(order.instance_id, order.lease)
        _tell(means, order, handle, has_ended)
    return len(orphans)


class OrphanWatch:
    """Of a launcher with hosts of its own: looks at the start, when one comes back, and now and then.

    On a thread of its own, because a host may be slow and an orphan is given time to end.
    """

    def __init__(self, means: Means) -> None:
        self._means = means
        self._look: ThreadedCall[int] | None = None
        self._next_s = 0.0
        self._silent: frozenset[str] = frozenset()

    def turn(self) -> None:
        """Look if it is time to; returns at once."""
        means, launcher = self._means, self._means.launcher
        if not isinstance(launcher, PlacesOnHosts):
            return
        silent = frozenset(host for host, silence in launcher.hosts().items() if silence)
        now = means.clock()
        if self._silent - silent:
            self._next_s = now
        self._silent = silent
        if self._look is not None:
            if self._look.is_under_way():
                return
            look, self._look = self._look, None
            try:
                look.result()
            except Exception:  # a border like the loop's: it is looked again
                logger.exception("orphans cannot be looked for; tried again in %g s", ORPHANS_INTERVAL_S)
        if now >= self._next_s:
            self._next_s = now + ORPHANS_INTERVAL_S
            self._look = ThreadedCall("orphans", lambda: end_orphans(means), now)


def _tell(means: Means, order: LaunchOrder, handle: EngineHandle, has_ended: bool) -> None:
    pid, name = handle.identity.pid, order.served_model_name
    logger.error("pid=%d instance=%s deployment=%s is an orphan", pid, order.instance_id, name)
    did = (
        f"ended pid {pid}" if has_ended else f"SIGKILL does not end pid {pid} (a device may hang: see dmesg)"
    )
    reason = f"{did}, an engine of {name} that this registry does not know: was it restored?"
    with means.database.session() as session:
        record_event(session, "supervisor", reason, deployment=name, instance=order.instance_id)


def end_handles(
    handles: Sequence[EngineHandle], sigterm_s: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """SIGTERM, then SIGKILL for those that are there `sigterm_s` later; waits `SIGKILL_S` for these."""
    for handle in handles:
        handle.terminate()
    _await_ends(handles, sigterm_s, clock)
    for handle in handles:
        if handle.exit_code() is None:
            handle.kill()
    _await_ends(handles, SIGKILL_S, clock)


def _await_ends(handles: Sequence[EngineHandle], timeout_s: float, clock: Callable[[], float]) -> None:
    deadline_s = clock() + timeout_s
    while any(handle.exit_code() is None for handle in handles) and clock() < deadline_s:
        time.sleep(LOOK_INTERVAL_S)
