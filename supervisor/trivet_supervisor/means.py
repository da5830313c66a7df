"""What the supervisor acts with. Tests pass another clock, launcher, wire and engine command."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trivet.config import Settings
from trivet.launching import Launcher
from trivet_registry.database import Database
from trivet_supervisor.backoff import Backoff
from trivet_supervisor.engine_wire import EngineWire
from trivet_supervisor.instance_watch import Limits
from trivet_supervisor.launch_order import engine_command


@dataclass(frozen=True, slots=True)
class Means:
    """Shared by the parts of one supervisor."""

    database: Database
    settings: Settings
    launcher: Launcher
    wire: EngineWire
    clock: Callable[[], float]  # CLOCK_MONOTONIC seconds: setting the wall clock changes nothing
    limits: Limits = field(default_factory=Limits)
    backoff: Backoff = field(default_factory=Backoff)
    inherited: Mapping[str, str] = field(default_factory=dict)  # environment of every engine
    command: Callable[[Settings, str], list[str]] = engine_command
    check_claim: Callable[[], None] = lambda: None  # before each turn. Raises: SupervisionLost
    # `DeviceTable.holders`: whether the memory of an engine that has ended is back. Here nobody tells.
    memory_holders: Callable[[str, Collection[str], Collection[int], float], frozenset[int] | None] = (
        lambda backend, uids, pids, since_s: frozenset()
    )
