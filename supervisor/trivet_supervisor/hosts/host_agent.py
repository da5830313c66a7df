"""Runs on another host and does there what the local launcher does here.

Interpreter, environment, cores and memory limit of an engine are what this host's own `trivet.toml` says of
its backend. Orders, logs and announced endpoints lie in a folder of the home that has the host's name: hosts
may share a home. An agent knows engines by their lease alone, and none of them needs it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trivet import __version__
from trivet.config import Settings, inherited_environment
from trivet.confining import confinement
from trivet.contract import DeviceInfo
from trivet.endpoints import Endpoints
from trivet.engine import backend_answers
from trivet.engine.doors import endpoints_file
from trivet.errors import TrivetError, Unavailable
from trivet.launching import UNSEEN_EXIT, ProcessOrder
from trivet.messages import LaunchOrder
from trivet.plugins import PluginHost, load_plugins
from trivet.prober import Prober
from trivet_supervisor.hosts.agent_calls import (
    Agent,
    Answer,
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
    decode_call,
    encode,
)
from trivet_supervisor.launch_order import engine_command, engine_environment
from trivet_supervisor.launchers.local import LocalHandle, LocalLauncher

logger = logging.getLogger(__name__)

LOG_CHUNK_BYTES = 256 << 10
PROBE_TIMEOUT_S = 5.0  # before a start: it was probed for the plan a moment ago


class HostAgent:
    """One a host. Thread-safe: a probe that takes long holds up nothing else."""

    def __init__(self, name: str, address: str, settings: Settings) -> None:
        """Args: address: of this host, on which its engines listen; settings: this host's own."""
        self._address = address
        self._settings = settings
        self._folder = settings.paths.home / "hosts" / name
        self._launcher = LocalLauncher(self._folder)
        self._handles: dict[str, LocalHandle] = {}  # by lease
        self._instances: dict[str, str] = {}  # by lease
        self._lock = threading.Lock()
        self._prober = Prober()
        self._plugins: PluginHost | None = None
        self._plugins_lock = threading.Lock()
        # Leases that were told to end, or that somebody heard are not here: a start that was held up on its
        # way comes too late.
        self._never: set[str] = set()

    def answer(self, message: bytes) -> bytes:
        """What is wrong with a call is an answer, too."""
        try:
            return encode(self._answer(decode_call(message)))
        except msgspec.DecodeError as error:
            return encode(Refused(f"Trivet {__version__} on this host cannot read the call: {error}"))
        except TrivetError as error:
            return encode(Refused(str(error)))

    def _answer(self, call: Call) -> Answer:
        match call:
            case Probe():
                return Devices(self._probe(call.backend, call.timeout_s))
            case Hello():
                return Agent(__version__)
        launch_env = self._launch_env(call.launch) if isinstance(call, Start) else {}
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
                    self._discard(call.instance_id, call.lease)
                    return Orders([])

    def _probe(self, backend: str, timeout_s: float) -> list[DeviceInfo]:
        found = self._host().backends.get(backend)
        return [] if found is None else self._prober.probe(backend, found, timeout_s)

    def _host(self) -> PluginHost:
        with self._plugins_lock:  # not the other: engines are looked at meanwhile
            if self._plugins is None:
                self._plugins = load_plugins()
            return self._plugins

    def _launch_env(self, launch: LaunchOrder) -> Mapping[str, str]:
        """What the backend wants for these devices of this host. Raises: Unsupported; Unavailable."""
        found = {device.uid: device for device in self._probe(launch.backend, PROBE_TIMEOUT_S)}
        missing = [uid for uid in launch.device_uids if uid not in found]
        if missing:
            raise Unavailable(f"backend {launch.backend} has no device {', '.join(missing)} any more")
        backend = self._host().backend(launch.backend)
        return backend_answers.launch_env(backend, [found[uid] for uid in launch.device_uids])

    def _start(self, call: Start, launch_env: Mapping[str, str]) -> Started | Refused:
        """Raises: Unavailable."""
        if call.launch.lease in self._never:
            return Refused("it was told to end before it was started")
        try:
            (self._folder / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
        except OSError as error:
            raise Unavailable(f"{self._folder} cannot be written: {error.strerror}") from error
        launch = msgspec.structs.replace(call.launch, run_dir=str(self._folder), listen=self._address)
        handle = self._launcher.start(
            ProcessOrder(
                launch,
                engine_command(self._settings, launch.backend),
                engine_environment(
                    self._settings, self._inherited(), launch.backend, launch_env, launch.lease
                ),
                self._log_file(launch.lease),
                confinement(self._settings, launch.backend),
            )
        )
        self._handles[launch.lease] = handle
        self._instances[launch.lease] = launch.instance_id
        return Started(handle.identity.pid, handle.identity.start_time)

    def _inherited(self) -> Mapping[str, str]:
        return inherited_environment()

    def _log_file(self, lease: str) -> Path:
        return self._folder / "logs" / f"{lease}.log"

    def _discard(self, instance_id: str, lease: str) -> None:
        for file in self._folder.glob(f"logs/{lease}.log*"):
            file.unlink(missing_ok=True)
        self._instances.pop(lease, None)
        self._launcher.discard(instance_id, lease)

    def _handle(self, lease: str) -> LocalHandle | None:
        handle = self._handles.get(lease) or self._launcher.find(lease)
        if handle is not None:
            self._handles[lease] = handle
        return handle

    def _find(self, lease: str) -> Started | Gone:
        handle = self._handle(lease)
        if handle is None or handle.exit_code() is not None:
            self._never.add(lease)
            return Gone()
        return Started(handle.identity.pid, handle.identity.start_time)

    def _look(self, call: Look) -> Seen:
        self._never.update(call.kill)
        for leases, name in ((call.terminate, "terminate"), (call.kill, "kill")):
            for lease in leases:
                if (handle := self._handle(lease)) is not None:
                    logger.info("pid=%d is told to %s", handle.identity.pid, name)
                    getattr(handle, name)()
        seen = {one.lease: self._seen(one) for one in call.followed}
        for lease in self._handles.keys() - seen.keys():  # nobody asks for it any more
            if self._handles[lease].exit_code() is not None:
                del self._handles[lease]
        return Seen(seen)

    def _seen(self, one: Followed) -> EngineSeen:
        handle = self._handle(one.lease)
        code = UNSEEN_EXIT if handle is None else handle.exit_code()  # before the log: no line is missed
        log, offset, has_more = _read_log(self._log_file(one.lease), one.log_offset)
        processes = [] if handle is None else [(p.pid, p.start_time) for p in handle.processes()]
        return EngineSeen(code, processes, self._endpoints(one.lease), log, offset, has_more)

    def _endpoints(self, lease: str) -> Endpoints | None:
        if lease not in self._instances:  # of an agent before this one
            self._instances |= {order.lease: order.instance_id for order in self._launcher.orders()}
        instance_id = self._instances.get(lease, "")
        try:
            return msgspec.json.decode(endpoints_file(self._folder, instance_id).read_bytes(), type=Endpoints)
        except (OSError, msgspec.MsgspecError):
            return None


def _read_log(file: Path, offset: int) -> tuple[bytes, int, bool]:
    """What stands there from `offset` on. A log that has been cut meanwhile (`log_bound`) begins anew."""
    try:
        with file.open("rb") as log:
            size = log.seek(0, 2)
            start = offset if offset <= size else 0
            log.seek(start)
            chunk = log.read(LOG_CHUNK_BYTES)
    except OSError:
        return b"", offset, False
    return chunk, start + len(chunk), start + len(chunk) < size
