"""Runs on another host and does there what the local launcher does here.

Interpreter, environment, cores and memory limit of an engine are what this host's own `trivet.toml` says of
its backend. Orders, logs and announced endpoints lie in a folder of the home that has the host's name: hosts
may share a home. An agent knows engines by their lease, and by what it has written down of them
(`lease_records`); none of them needs it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from trivet import __version__
from trivet.config import Settings, inherited_environment
from trivet.confining import confinement
from trivet.contract import Backend, DeviceInfo
from trivet.endpoints import Endpoints
from trivet.engine import backend_answers
from trivet.engine.doors import endpoints_file
from trivet.errors import TrivetError, Unavailable
from trivet.launching import UNSEEN_EXIT, ProcessOrder
from trivet.optional_contract import DeviceUsage
from trivet.plugins import PluginHost, load_plugins
from trivet.prober import Prober
from trivet_supervisor.device_users import process_name
from trivet_supervisor.hosts.agent_calls import (
    Agent,
    Answer,
    AskUsage,
    Call,
    Devices,
    Discard,
    EngineSeen,
    Find,
    Followed,
    Gone,
    Hello,
    ListOrders,
    Look,
    Orders,
    Probe,
    Refused,
    Seen,
    Start,
    Started,
    Untold,
    Usage,
    decode_call,
    encode,
)
from trivet_supervisor.hosts.far_log import read_log
from trivet_supervisor.hosts.lease_records import LeaseRecords
from trivet_supervisor.hosts.model_copies import ModelCopies
from trivet_supervisor.launch_order import engine_command, engine_environment
from trivet_supervisor.launchers.local import LocalHandle, LocalLauncher
from trivet_supervisor.launchers.process_table import leased_processes, start_time

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 5.0  # before a start: it was probed for the plan a moment ago
PROCESSES_AGE_S = 2.0  # a look at every process of a host takes milliseconds a thousand


class HostAgent:
    """One a host. Thread-safe: a probe that takes long holds up nothing else."""

    def __init__(self, name: str, address: str, settings: Settings, site_key: str = "") -> None:
        """Finds what agents before it have written down.

        Args:
            address: of this host, on which its engines listen.
            settings: this host's own.
            site_key: of the one site whose engines are started here; empty: any that reaches this agent.
        """
        self._address = address
        self._settings = settings
        self._site_key = site_key
        self._folder = settings.paths.home / "hosts" / name
        self._launcher = LocalLauncher(self._folder)
        self._handles: dict[str, LocalHandle] = {}  # by lease
        self._instances: dict[str, str] = {}  # by lease
        self._records = LeaseRecords(self._folder)
        self._models = ModelCopies(self._folder)
        self._processes: tuple[float, dict[str, list[int]]] | None = None  # seen when, pids by lease
        self._lock = threading.Lock()
        self._prober = Prober()
        self._plugins: PluginHost | None = None
        self._plugins_lock = threading.Lock()

    def answer(self, message: bytes) -> bytes:
        """What is wrong with a call is an answer, too."""
        try:
            return encode(self._answer(decode_call(message)))
        except msgspec.DecodeError as error:
            return encode(Refused(f"Trivet {__version__} on this host cannot read the call: {error}"))
        except TrivetError as error:
            return encode(Refused(str(error)))
        except OSError as error:  # a disk, a driver, rights
            logger.exception("a call failed")
            return encode(Refused(f"{type(error).__name__}: {error}"))

    def _answer(self, call: Call) -> Answer:
        match call:
            case Probe():
                return Devices(self._probe(call.backend, call.timeout_s))
            case AskUsage():
                return Usage(self._usage(call.backend, call.timeout_s))
            case Hello():
                return Agent(__version__, time.monotonic())
        launch_env = self._admit(call) if isinstance(call, Start) else {}
        with self._lock:
            match call:
                case Start():
                    return self._start(call, launch_env)
                case Look():
                    return self._look(call)
                case Find():
                    return self._find(call.lease)
                case ListOrders():
                    return Orders(self._launcher.orders())
                case Discard():
                    return self._discard(call.instance_id, call.lease)

    # ---- devices ----

    def _probe(self, backend: str, timeout_s: float) -> list[DeviceInfo]:
        return self._prober.probe(backend, self._backend(backend), timeout_s)

    def _usage(self, backend: str, timeout_s: float) -> dict[str, DeviceUsage]:
        told = self._prober.usage(backend, self._backend(backend), timeout_s)
        return {uid: _with_names(usage) for uid, usage in told.items()}

    def _backend(self, name: str) -> Backend:
        """Raises: Unavailable."""
        with self._plugins_lock:  # not the other: engines are looked at meanwhile
            if self._plugins is None:
                self._plugins = load_plugins()
            found = self._plugins.backends.get(name)
        if found is None:
            raise Unavailable(f"backend {name} is not installed there")
        return found

    # ---- starts ----

    def _admit(self, call: Start) -> Mapping[str, str]:
        """What the backend wants in the environment for these devices of this host.

        Raises: Unavailable where the order is another site's, model files differ or a device is missing;
        Unsupported.
        """
        launch = call.launch
        if self._site_key and launch.client_key != self._site_key:
            raise Unavailable("this host starts engines of another site only: the order has another key")
        self._models.check(call.model_files)
        found = {device.uid: device for device in self._probe(launch.backend, PROBE_TIMEOUT_S)}
        missing = [uid for uid in launch.device_uids if uid not in found]
        if missing:
            raise Unavailable(f"backend {launch.backend} has no device {', '.join(missing)} any more")
        backend = self._backend(launch.backend)
        return backend_answers.launch_env(backend, [found[uid] for uid in launch.device_uids])

    def _start(self, call: Start, launch_env: Mapping[str, str]) -> Started | Refused:
        """Raises: Unavailable."""
        launch = msgspec.structs.replace(call.launch, run_dir=str(self._folder), listen=self._address)
        if self._records.is_killed(launch.lease):
            return Refused("it was told to end before it was started")
        if call.expires_s is not None and time.monotonic() > call.expires_s:
            return Refused("the order was held up on its way, and nobody waits for it any more")
        try:
            (self._folder / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
        except OSError as error:
            raise Unavailable(f"{self._folder} cannot be written: {error.strerror}") from error
        handle = self._launcher.start(
            ProcessOrder(
                launch,
                engine_command(self._settings, launch.backend),
                engine_environment(
                    self._settings, inherited_environment(), launch.backend, launch_env, launch.lease
                ),
                self._log_file(launch.lease),
                confinement(self._settings, launch.backend),
            )
        )
        self._handles[launch.lease] = handle
        self._instances[launch.lease] = launch.instance_id
        try:
            self._records.started(launch.lease, handle.identity)
        except OSError as error:  # without that nobody could ever say that it is gone
            handle.kill()
            raise Unavailable(f"{self._folder} cannot be written: {error.strerror}") from error
        return Started(handle.identity.pid, handle.identity.start_time)

    def _log_file(self, lease: str) -> Path:
        return self._folder / "logs" / f"{lease}.log"

    # ---- engines ----

    def _discard(self, instance_id: str, lease: str) -> Orders | Refused:
        if (found := self._whereabouts(lease)) != Gone():
            why = found.reason if isinstance(found, Untold) else "a process of it lives"
            return Refused(f"{why}: its order stays")
        for file in self._folder.glob(f"logs/{lease}.log*"):
            file.unlink(missing_ok=True)
        self._instances.pop(lease, None)
        self._handles.pop(lease, None)
        self._records.forget(lease)
        self._launcher.discard(instance_id, lease)
        return Orders([])

    def _handle(self, lease: str, max_age_s: float = PROCESSES_AGE_S) -> LocalHandle | None:
        handle = self._handles.get(lease)
        if handle is None and self._pids(lease, max_age_s):
            handle = self._launcher.find(lease)
        if handle is not None:
            self._handles[lease] = handle
        return handle

    def _pids(self, lease: str, max_age_s: float = PROCESSES_AGE_S) -> list[int]:
        """One walk over all processes of the host serves every engine."""
        now = time.monotonic()
        if self._processes is None or now - self._processes[0] > max_age_s:
            self._processes = now, leased_processes()
        return self._processes[1].get(lease, [])

    def _find(self, lease: str) -> Started | Gone | Untold:
        found = self._whereabouts(lease)
        if isinstance(found, Gone):  # who asked relies on it: a start that was held up comes too late
            self._records.kill([lease])
        return found

    def _whereabouts(self, lease: str) -> Started | Gone | Untold:
        handle = self._handle(lease, max_age_s=0.0)
        if handle is not None and handle.exit_code() is None:
            return Started(handle.identity.pid, handle.identity.start_time)
        why = self._records.why_untold(lease) if handle is None else ""
        return Untold(why) if why else Gone()

    def _look(self, call: Look) -> Seen:
        self._records.kill(call.kill)
        for lease in call.terminate:
            if (handle := self._handle(lease, max_age_s=0.0)) is not None:
                logger.info("pid=%d is told to terminate", handle.identity.pid)
                handle.terminate()
        for lease in call.kill:
            if (handle := self._handle(lease, max_age_s=0.0)) is not None:
                logger.info("pid=%d is told to die", handle.identity.pid)
                handle.kill()
        seen = {one.lease: self._seen(one) for one in call.followed}
        for lease in self._handles.keys() - seen.keys():  # nobody asks for it any more
            if self._handles[lease].exit_code() is not None:
                del self._handles[lease]
        return Seen(seen)

    def _seen(self, one: Followed) -> EngineSeen:
        handle, untold = self._handle(one.lease), ""
        if handle is None:
            untold = self._records.why_untold(one.lease)
            code = None if untold else UNSEEN_EXIT
        else:
            code = handle.exit_code()  # before the log: no line is missed
        log, position, has_more = read_log(self._log_file(one.lease), one.log)
        processes = [] if handle is None or code is not None else self._living(one.lease, handle)
        return EngineSeen(code, processes, self._endpoints(one.lease), log, position, has_more, untold)

    def _living(self, lease: str, handle: LocalHandle) -> list[tuple[int, float]]:
        """The engine and its ranks; itself at once, the others as they were seen some seconds ago."""
        found = {handle.identity.pid: handle.identity.start_time}
        for pid in self._pids(lease):
            if pid not in found and (began := start_time(pid)) is not None:
                found[pid] = began
        return sorted(found.items())

    def _endpoints(self, lease: str) -> Endpoints | None:
        if lease not in self._instances:  # of an agent before this one
            self._instances |= {order.lease: order.instance_id for order in self._launcher.orders()}
        instance_id = self._instances.get(lease, "")
        try:
            return msgspec.json.decode(endpoints_file(self._folder, instance_id).read_bytes(), type=Endpoints)
        except (OSError, msgspec.MsgspecError):
            return None


def _with_names(usage: DeviceUsage) -> DeviceUsage:
    if usage.users is None:
        return usage
    return replace(
        usage, users=tuple(replace(user, name=process_name(user.pid) or "?") for user in usage.users)
    )
