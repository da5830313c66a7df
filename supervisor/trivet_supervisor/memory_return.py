"""`stopped` means that the device has its memory back: where a backend tells who has it, it is asked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from trivet.launching import UNSEEN_EXIT, ProcessIdentity
from trivet_registry.instance_state import InstanceState
from trivet_registry.tables import Instance
from trivet_supervisor.instance_watch import Watched
from trivet_supervisor.means import Means

logger = logging.getLogger(__name__)

_TOLD_TO_STOP = (InstanceState.DRAINING, InstanceState.STOPPING)


@dataclass(slots=True)
class EndedUnseen:
    """`EngineHandle` of one that was told to stop and went while no supervisor was there."""

    identity: ProcessIdentity

    def exit_code(self) -> int:
        return UNSEEN_EXIT

    def processes(self) -> Sequence[ProcessIdentity]:
        return ()

    def endpoints(self) -> None:
        """Nothing is left to be reached."""

    def unreachable(self) -> str:
        """What has ended needs no answer."""
        return ""

    cut_off = unreachable

    def terminate(self) -> None:
        """Nothing is left to signal."""

    kill = abandon = terminate


def ended_unseen(instance: Instance) -> EndedUnseen | None:
    """None for one that was not told to stop, or that never had a process."""
    if instance.instance_state not in _TOLD_TO_STOP or instance.pid is None:
        return None
    return EndedUnseen(ProcessIdentity(instance.pid, instance.process_start_time or 0.0, instance.host or ""))


def why_memory_is_missing(means: Means, instance: Instance, watched: Watched) -> str | None:
    """For an instance whose processes are gone. None: nothing is missing, or it did not come back in time.

    One that ended by itself is not waited for: that it failed is told at once, and the next attempt is
    planned with what is free.
    """
    if instance.instance_state not in _TOLD_TO_STOP or instance.backend is None:
        return None
    now = means.clock()
    if watched.gone_s is None:
        watched.gone_s = now
    pids = {each["pid"] for each in instance.processes or []} | {watched.handle.identity.pid}
    holders = means.memory_holders(instance.backend, instance.device_uids or [], pids, watched.gone_s)
    if holders is not None and not holders:
        return None
    devices = ", ".join(instance.device_uids or [])
    if now - watched.gone_s > means.limits.memory_back_s:
        failing = "is not told to have given" if holders is None else "did not give"
        watched.memory_note = (
            f"{devices} {failing} its memory back within {means.limits.memory_back_s:g} s of its end; "
            "see `trivet devices`"
        )
        logger.error("instance=%s ended; %s", instance.id, watched.memory_note)
        return None
    return f"its process is gone; waits until {devices} has its memory back"
