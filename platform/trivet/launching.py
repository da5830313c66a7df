"""How an engine process is started: the contract between the supervisor and launcher plugins.

The supervisor decides, the launcher acts. `trivet_supervisor.launchers.local` spawns processes of this host;
others (the hook `trivet_launcher`) may start the same process in a container, under another account, by a
queueing system, or on other hosts. Nothing here assumes one host:

- What an engine is told is a message (`LaunchOrder`). The launcher puts it where the process finds it, writes
  into it what only that host knows (its run directory, the address to listen on), lists the orders that have
  not been discarded, and discards them.
- Where an engine is reached is what its handle says (`endpoints`): files of a run directory on one host, tcp
  with CURVE keys between hosts. Deadlines on the wire count from `sent_s` there (messages.py).
- What an engine prints arrives in `ProcessOrder.log_file` on the supervisor's host, however it gets there. It
  then outlives the other host, and logs, diagnosis and the first crash are read as those of an engine here.
- Whether a process lives is the launcher's word: the supervisor asks handles and never looks at processes. Of
  a host that does not answer a handle knows nothing new, and says so (`unreachable`): that alone ends no
  instance. The engine itself is asked over its own sockets, and only where it is silent, too, it is given up
  and started elsewhere. A row of the registry (`fences`) then stands for it: whichever supervisor there is
  asks for it until its host answers, and takes it back or, once its successor was started, ends it.
- Both ends are of one version: the order carries the supervisor's, and an engine of another refuses with a
  sentence that names both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # the command line, which loads every plugin, needs no sockets
    from trivet.contract import DeviceInfo
    from trivet.endpoints import Endpoints
    from trivet.messages import LaunchOrder
    from trivet.optional_contract import DeviceUsage

LEASE_VARIABLE = "TRIVET_LEASE"
UNSEEN_EXIT = 255  # the exit code of a process that was adopted: the kernel tells it to its parent only
CALL_LIMIT_S = 30.0  # for what of a launcher may wait for another host


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Names one process for ever: pids are reused, a pid with its start time is not."""

    pid: int
    start_time: float  # seconds since that host's boot, from its kernel: it stays when the clock is set
    host: str = ""  # as the launcher names it; empty: the supervisor's own


@dataclass(frozen=True, slots=True)
class Confinement:
    """What of a host an engine and its ranks may have; the site's `[backend.NAME]` says it."""

    cpus: frozenset[int] | None = None  # None: all
    memory_limit_bytes: int | None = None  # private memory of each process; mapped files do not count


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of the model, as it was registered."""

    path: str  # the same on every host
    size_bytes: int
    sha256: str = ""  # empty: nobody has read it through yet


@dataclass(frozen=True, slots=True)
class ProcessOrder:
    """What to start. `command`, `env` and `confinement` are this host's: another has its own settings."""

    launch: LaunchOrder
    command: Sequence[str]  # the file of the order is its last argument, which the launcher adds
    env: Mapping[str, str]  # in full; nothing is inherited. TRIVET_LEASE marks the process as ours
    log_file: Path  # standard output and error
    confinement: Confinement = Confinement()
    host: str = ""  # where the devices are; empty: here
    model_files: Sequence[ModelFile] = ()  # another host has copies of its own

    @property
    def lease(self) -> str:
        return self.launch.lease


class EngineHandle(Protocol):
    """A process that was started or adopted. Nothing here waits for another host; all is for any thread."""

    identity: ProcessIdentity

    def exit_code(self) -> int | None:
        """None while it or a rank of it runs; negative signal number if killed; UNSEEN_EXIT if adopted."""

    def processes(self) -> Sequence[ProcessIdentity]:
        """The engine and every rank of it that lives now."""

    def endpoints(self) -> Endpoints | None:
        """Where it is reached; None where it has not told yet, or where its run directory here says."""

    def unreachable(self) -> str:
        """Empty while its host answers; else since when it does not, in a sentence."""

    def cut_off(self) -> str:
        """Empty, or why its silence is no reason to give it up: it is this host that reaches nobody."""

    def terminate(self) -> None:
        """Ask the process group to end (SIGTERM)."""

    def kill(self) -> None:
        """End the process group (SIGKILL)."""

    def abandon(self) -> None:
        """It is followed no more; signals that its host has not got yet still go there.

        The supervisor asks for it again by `find`, after its own restart, too, until that says None.
        """


class Launcher(Protocol):
    """Starts engine processes in a session of their own, so that they outlive the supervisor.

    Thread-safe. `start`, `adopt`, `find` and `orders` may wait for another host, each call for at most
    `CALL_LIMIT_S` in all, however many hosts are silent: the supervisor calls them on threads of their own,
    several at once, and its loop goes on meanwhile. `discard` and every member of a handle return at once.
    """

    name: str

    def start(self, order: ProcessOrder) -> EngineHandle:
        """Raises: Unavailable where the process cannot be started or confined, with the reason.

        Also where an order for another host was not answered in time: it may be carried out all the same, but
        never after `find` has said None of its lease.
        """

    def adopt(
        self, identity: ProcessIdentity, lease: str, log_file: Path | None = None
    ) -> EngineHandle | None:
        """The living process with this identity and lease, or None. What it prints goes on into `log_file`.

        While its host does not answer: a handle that says so. Raises: Unavailable for a host of another
        launcher.
        """

    def find(self, lease: str, log_file: Path | None = None, host: str = "") -> EngineHandle | None:
        """The living engine with this lease, where a crash left its identity unrecorded; or None.

        None means that it is not there: raises Unavailable where that cannot be told, because `host` (where
        it was to be started) does not answer.
        """

    def orders(self) -> Sequence[LaunchOrder]:
        """What was started and not discarded, on every host that answers."""

    def discard(self, instance_id: str, lease: str) -> None:
        """Remove the order and the sockets of an engine that is gone, and give back what it had claimed.

        Called once it is known to be gone, never for one that was only given up; perhaps twice. A successor
        of the same instance, with another lease, keeps its own. What cannot be removed is logged.
        """


@runtime_checkable
class PlacesOnHosts(Protocol):
    """A launcher with hosts of its own; optional. Then this host's devices are not probed for it."""

    def hosts(self) -> Mapping[str, str]:
        """Every host of the site by name: empty while it answers, else why it does not, in a sentence.

        Returns at once and never raises. One that comes back is asked for its orders.
        """

    def devices(self, backend: str, timeout_s: float) -> list[DeviceInfo]:
        """Of every host; `host` is its name, and `uid` begins with it.

        A host that is silent, or cannot be asked, has one that is unusable and says why. Never raises, and
        takes little longer than `timeout_s`, however many hosts there are.
        """

    def usage(self, backend: str, timeout_s: float) -> dict[str, DeviceUsage]:
        """How busy they are, by the same uids; of those whose host and backend tell. As quick."""
