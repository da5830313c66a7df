"""How an engine process is started: the contract between the supervisor and launcher plugins.

The local launcher (`trivet_supervisor.launchers`) spawns processes of this account; another may start the
same process in a container, under another account or by a queueing system. The supervisor decides, the
launcher only acts: it asks handles and never looks at processes itself, so what a pid means and how one is
signalled is the launcher's own business. What a launcher has to give an engine is the home's file system
(its order, its log and its sockets lie there) and the host's CLOCK_MONOTONIC, on which deadlines count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LEASE_VARIABLE = "TRIVET_LEASE"
UNSEEN_EXIT = 255  # the exit code of a process that was adopted: the kernel tells it to its parent only


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Names one process of its host for ever: pids are reused, a pid with its start time is not."""

    pid: int
    start_time: float  # seconds since that host's boot, from its kernel: it stays when the clock is set


@dataclass(frozen=True, slots=True)
class Confinement:
    """What of a host an engine and its ranks may have; the site's `[backend.NAME]` says it."""

    cpus: frozenset[int] | None = None  # None: all
    memory_limit_bytes: int | None = None  # private memory of each process; mapped files do not count


@dataclass(frozen=True, slots=True)
class ProcessOrder:
    """What to start."""

    command: Sequence[str]
    env: Mapping[str, str]  # in full; nothing is inherited
    log_file: Path  # standard output and error
    lease: str  # in env as TRIVET_LEASE, so that a stranger's process is never taken for ours
    confinement: Confinement = Confinement()


class EngineHandle(Protocol):
    """A process that was started or adopted."""

    identity: ProcessIdentity

    def exit_code(self) -> int | None:
        """None while it or a rank of it runs; negative signal number if killed; UNSEEN_EXIT if adopted."""

    def processes(self) -> Sequence[ProcessIdentity]:
        """The engine and every rank of it that lives now."""

    def terminate(self) -> None:
        """Ask the process group to end (SIGTERM)."""

    def kill(self) -> None:
        """End the process group (SIGKILL)."""


class Launcher(Protocol):
    """Starts engine processes in a session of their own, so that they outlive the supervisor."""

    name: str

    def start(self, order: ProcessOrder) -> EngineHandle:
        """Raises: Unavailable where the process cannot be started or confined, with the reason."""

    def adopt(self, identity: ProcessIdentity, lease: str) -> EngineHandle | None:
        """The living process with this identity and lease, or None."""

    def find(self, lease: str) -> EngineHandle | None:
        """The living engine with this lease, where a crash left its identity unrecorded; or None."""
