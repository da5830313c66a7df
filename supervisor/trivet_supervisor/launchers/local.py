"""Starts engines on this host, in a session of their own, and signals nothing that lacks their lease."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trivet.confining import confine, on_cpus
from trivet.errors import Unavailable
from trivet.launching import UNSEEN_EXIT, ProcessIdentity, ProcessOrder
from trivet.messages import LaunchOrder
from trivet_supervisor.launchers.order_files import orders_in, read_order, remove_run_files, write_order
from trivet_supervisor.launchers.process_table import has_lease, leased_pids, start_time

logger = logging.getLogger(__name__)


class LocalHandle:
    """One engine on this host; `child` where this process started it."""

    def __init__(
        self,
        identity: ProcessIdentity,
        lease: str,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.identity = identity
        self._lease = lease
        self._child = child
        # A pidfd names the process even after its pid is given to another (pidfd_open(2)).
        self._pidfd = None if child else _open_pidfd(identity)

    def exit_code(self) -> int | None:
        """None until the engine and everything that it started has ended.

        What an engine leaves behind when it dies (ranks, compilers) is killed here, because it would
        hold device memory that the next attempt needs. A rank that survives that, in a driver that hangs,
        has not ended: who waits for it says so.
        """
        code = self._own_exit_code()
        if code is None:
            return None
        stragglers = list(leased_pids(self._lease))
        for pid in stragglers:
            _send(pid, signal.SIGKILL)
        return None if stragglers else code

    def processes(self) -> list[ProcessIdentity]:
        """The engine and every rank of it that lives now, by the lease that they inherit."""
        started = ((pid, start_time(pid)) for pid in sorted(leased_pids(self._lease)))
        return [ProcessIdentity(pid, began) for pid, began in started if began is not None]

    def is_whom_it_names(self) -> bool:
        """False where the pid is another's by now; the pidfd is given back then."""
        pid = self.identity.pid
        if start_time(pid) == self.identity.start_time and has_lease(pid, self._lease):
            return True
        self._give_back_pidfd()
        return False

    def endpoints(self) -> None:
        """Its run directory says."""

    def unreachable(self) -> str:
        """This host always answers."""
        return ""

    def cut_off(self) -> str:
        """Nor is it ever cut off from itself."""
        return ""

    def abandon(self) -> None:
        """It is here: nothing is ever given up before it has ended."""

    def terminate(self) -> None:
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)
        for pid in leased_pids(self._lease):
            _send(pid, signal.SIGKILL)

    def _own_exit_code(self) -> int | None:
        if self._child is not None:
            return self._child.poll()
        if self._pidfd is None:  # it had ended, or there was no descriptor for it: what /proc says counts
            has_ended = start_time(self.identity.pid) != self.identity.start_time
            return UNSEEN_EXIT if has_ended else None
        is_zombie = start_time(self.identity.pid) is None  # that nobody reaps
        if not is_zombie and not select.select([self._pidfd], [], [], 0)[0]:
            return None
        self._give_back_pidfd()
        return UNSEEN_EXIT

    def _give_back_pidfd(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _signal_group(self, number: signal.Signals) -> None:
        # Our unreaped child keeps its pid; an adopted one is looked at again just before.
        # (Whose environment cannot be read for a moment, while it is in exec(2).)
        is_ours = self._own_exit_code() is None and (
            self._child is not None or has_lease(self.identity.pid, self._lease)
        )
        if is_ours:
            try:
                os.killpg(self.identity.pid, number)
            except ProcessLookupError:
                logger.debug("pid=%d ended before %s", self.identity.pid, number.name)


class LocalLauncher:
    """`launching.Launcher` for this host."""

    name = "local"

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._starting: set[str] = set()  # instances
        self._lock = threading.Lock()

    def orders(self) -> list[LaunchOrder]:
        return list(orders_in(self._run_dir))

    def discard(self, instance_id: str, lease: str) -> None:
        written = read_order(self._run_dir, instance_id)
        if written is None or written.lease == lease:  # else a successor has them by now
            remove_run_files(self._run_dir, instance_id)

    def start(self, order: ProcessOrder) -> LocalHandle:
        """Raises: Unavailable with the system's words, and how to repair it."""
        with self._alone(order.launch.instance_id):
            return self._start(order)

    @contextmanager
    def _alone(self, instance_id: str) -> Iterator[None]:
        """Attempts have the same files: one that hangs in a disk would remove those of its successor."""
        with self._lock:
            if instance_id in self._starting:
                raise Unavailable(
                    "an earlier attempt still hangs in its start: see dmesg, a disk may be gone"
                )
            self._starting.add(instance_id)
        try:
            yield
        finally:
            with self._lock:
                self._starting.discard(instance_id)

    def _start(self, order: ProcessOrder) -> LocalHandle:
        remove_run_files(self._run_dir, order.launch.instance_id)  # of an earlier attempt
        file = write_order(order.launch)
        try:
            order.log_file.parent.mkdir(parents=True, exist_ok=True)
            log = os.open(order.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise Unavailable(
                f"log file {order.log_file} cannot be opened: {error.strerror}; "
                "make its folder one that Trivet can write"
            ) from error
        try:
            with on_cpus(order.confinement.cpus):
                child = subprocess.Popen(
                    [*order.command, str(file)],
                    env=dict(order.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=order.log_file.parent,
                    start_new_session=True,  # a terminal's Ctrl-C and hang-up do not reach it
                )
            confine(child, order.confinement.memory_limit_bytes)
        except OSError as error:
            raise Unavailable(
                f"engine process cannot be started: {order.command[0]}: {error.strerror}; "
                "check python in [backend.NAME] of trivet.toml"
            ) from error
        except ValueError as error:  # a NUL in the command or in a variable
            raise Unavailable(
                f"engine process cannot be started: {error}; check env in [backend.NAME] of trivet.toml"
            ) from error
        finally:
            os.close(log)
        # A child that has ended already is a zombie until we reap it; its start time no longer matters.
        return LocalHandle(ProcessIdentity(child.pid, start_time(child.pid) or 0.0), order.lease, child)

    def adopt(
        self, identity: ProcessIdentity, lease: str, log_file: Path | None = None
    ) -> LocalHandle | None:
        """The living process with this identity and lease, or None."""
        if identity.host:
            raise Unavailable(_of_another(identity.host))
        handle = LocalHandle(identity, lease)  # first: what is looked at next is the process it holds
        return handle if handle.is_whom_it_names() else None

    def find(self, lease: str, log_file: Path | None = None, host: str = "") -> LocalHandle | None:
        """The engine with this lease: the leader of their session, or whatever it left behind."""
        if host:
            raise Unavailable(_of_another(host))
        pids = sorted(leased_pids(lease), key=lambda pid: not _leads_session(pid))
        for pid in pids:
            started = start_time(pid)
            handle = None if started is None else self.adopt(ProcessIdentity(pid, started), lease)
            if handle is not None:
                return handle
        return None


def _of_another(host: str) -> str:
    return f"it is on host {host}, which launcher 'local' does not reach; set `launcher` back"


def _open_pidfd(identity: ProcessIdentity) -> int | None:
    try:
        return os.pidfd_open(identity.pid)
    except OSError:
        return None


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        logger.debug("pid=%d ended before %s", pid, number.name)
