"""`launching.Launcher` over the agents of other hosts.

Each host has a thread here that looks at its engines several times a second, so that no question of the
supervisor waits for a network: a handle answers from the last look. What engines print comes with each look
and is appended to their log files on this host.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from trivet.config import Paths
from trivet.contract import DeviceInfo
from trivet.endpoints import client_keys
from trivet.errors import Unavailable
from trivet.launching import EngineHandle, ProcessIdentity, ProcessOrder
from trivet.messages import LaunchOrder
from trivet.optional_contract import DeviceUsage
from trivet_supervisor.hosts.agent_calls import (
    Answer,
    AskUsage,
    Call,
    Claims,
    Devices,
    Discard,
    Find,
    Gone,
    Hosts,
    ListOrders,
    Orders,
    Probe,
    Refused,
    Start,
    Started,
    Untold,
    Usage,
)
from trivet_supervisor.hosts.asking_all import AskingAll
from trivet_supervisor.hosts.host_link import HostLink
from trivet_supervisor.hosts.remote_handle import RemoteHandle
from trivet_supervisor.launchers.local import LocalLauncher

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 15.0
CALL_TIMEOUT_S = 5.0
PROBE_GRACE_S = 3.0  # on the way; a backend that hangs is given up there (`prober`)


class RemoteLauncher:
    """Thread-safe; `close` ends its threads and leaves the engines alone."""

    def __init__(self, name: str, hosts: Hosts, paths: Paths, claims: Claims | None = None) -> None:
        """Nobody is asked yet.

        Args:
            paths: of this site; engines admit its keys.
            claims: a scheduler that has to know which devices engines hold.
        """
        self.name = name
        self._hosts = hosts
        self._claims = claims
        self._log_positions = paths.run / "far-logs"
        self._asking = AskingAll()
        self._key_file = paths.engine_keys_file
        self._here = LocalLauncher(paths.run)  # what was started before the site had this one
        self._links: dict[str, HostLink] = {}
        self._lock = threading.Lock()

    def start(self, order: ProcessOrder) -> EngineHandle:
        """Raises: Unavailable, with the agent's own words."""
        if not order.host:
            raise Unavailable(f"launcher {self.name!r} was given a device of no host; see `trivet devices`")
        launch = msgspec.structs.replace(order.launch, client_key=client_keys(self._key_file).public)
        link = self._link(order.host)
        with self._claimed(order.host, launch):
            answer = link.call(Start(launch, list(order.model_files)), START_TIMEOUT_S)
        if not isinstance(answer, Started):
            raise Unavailable(f"host {order.host}: {_told(answer)}")
        identity = ProcessIdentity(answer.pid, answer.start_time, order.host)
        return RemoteHandle(identity, order.lease, link, order.log_file)

    @contextmanager
    def _claimed(self, host: str, launch: LaunchOrder) -> Iterator[None]:
        """What is not started then is given back when its host has told what it has."""
        if self._claims is None:
            yield
            return
        self._claims.take(host, launch)
        try:
            yield
        finally:
            self._claims.taken(launch.lease)

    def adopt(
        self, identity: ProcessIdentity, lease: str, log_file: Path | None = None
    ) -> EngineHandle | None:
        """The living process, or one whose host does not answer; None where it is gone."""
        if not identity.host:
            return self._here.adopt(identity, lease)
        link = self._link(identity.host)
        try:
            answer = link.call(Find(lease), CALL_TIMEOUT_S)
        except Unavailable as error:
            logger.warning("lease=%s cannot be looked for: %s", lease[:8], error)
            return RemoteHandle(identity, lease, link, log_file)
        is_another = isinstance(answer, Started) and (answer.pid, answer.start_time) != (
            identity.pid,
            identity.start_time,
        )
        return (
            None if isinstance(answer, Gone) or is_another else RemoteHandle(identity, lease, link, log_file)
        )

    def find(self, lease: str, log_file: Path | None = None, host: str = "") -> EngineHandle | None:
        """Where it was to be started, if that is known; else on any host that answers."""
        if not host:
            return self._find_anywhere(lease, log_file)
        link = self._link(host)
        try:
            answer = link.call(Find(lease), CALL_TIMEOUT_S)
        except Unavailable as error:
            raise Unavailable(f"it is not known whether it runs: {error}") from error
        match answer:
            case Started():
                identity = ProcessIdentity(answer.pid, answer.start_time, host)
                return RemoteHandle(identity, lease, link, log_file)
            case Gone():
                return None
        raise Unavailable(f"it is not known whether it runs: host {host}: {_told(answer)}")

    def _find_anywhere(self, lease: str, log_file: Path | None) -> EngineHandle | None:
        for name, answer in self._ask_all(Find(lease), CALL_TIMEOUT_S):
            match answer:
                case Started():
                    identity = ProcessIdentity(answer.pid, answer.start_time, name)
                    return RemoteHandle(identity, lease, self._link(name), log_file)
                case Unavailable():
                    logger.warning("lease=%s %s", lease[:8], answer)
                case Untold() | Refused():
                    logger.warning("lease=%s host=%s %s", lease[:8], name, answer.reason)
        return self._here.find(lease)

    def orders(self) -> list[LaunchOrder]:
        """Of every host that answers."""
        found = self._here.orders()
        for _, answer in self._ask_all(ListOrders(), CALL_TIMEOUT_S):
            if isinstance(answer, Orders):
                found += answer.orders
            elif isinstance(answer, Unavailable):
                logger.warning("%s", answer)
        return found

    def discard(self, instance_id: str, lease: str) -> None:
        """Wherever it was. A host that does not answer keeps the order, and `orders` lists it later."""
        self._here.discard(instance_id, lease)
        for name in self._hosts.names():
            self._link(name).later(Discard(instance_id, lease))

    def hosts(self) -> dict[str, str]:
        """As `launching.PlacesOnHosts`."""
        there = self._hosts.names()
        with self._lock:
            known = {*there, *self._links}
        silence = {name: self._link(name).unreachable() for name in sorted(known)}
        return {n: why or ("" if n in there else f"host {n} is not there") for n, why in silence.items()}

    def devices(self, backend: str, timeout_s: float) -> list[DeviceInfo]:
        """As `launching.PlacesOnHosts`."""
        found: list[DeviceInfo] = []
        for host, answer in self._ask_all(Probe(backend, timeout_s), timeout_s + PROBE_GRACE_S):
            match answer:
                case Devices():
                    found += [_of_host(device, host) for device in answer.devices]
                case Unavailable():
                    found.append(_unusable(backend, host, str(answer)))
                case _:
                    found.append(_unusable(backend, host, f"host {host}: {_told(answer)}"))
        if not found and (trouble := self._hosts.trouble()):
            found.append(_unusable(backend, "", trouble))
        return found

    def usage(self, backend: str, timeout_s: float) -> dict[str, DeviceUsage]:
        """As `launching.PlacesOnHosts`."""
        return {
            f"{host}/{uid}": usage
            for host, answer in self._ask_all(AskUsage(backend, timeout_s), timeout_s + PROBE_GRACE_S)
            if isinstance(answer, Usage)
            for uid, usage in answer.usage.items()
        }

    def _ask_all(self, call: Call, timeout_s: float) -> list[tuple[str, Answer | Unavailable]]:
        links = {name: self._link(name) for name in sorted(self._hosts.names())}
        return list(self._asking.ask(links, call, timeout_s).items())

    def close(self) -> None:
        """Its threads end; the engines stay."""
        with self._lock:
            links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()

    def _reaches_nobody(self) -> bool:
        with self._lock:
            return all(link.unreachable() for link in self._links.values())

    def _link(self, host: str) -> HostLink:
        with self._lock:
            if host not in self._links:
                settle = None if self._claims is None else self._claims.settle
                self._links[host] = HostLink(
                    host, self._hosts, self._reaches_nobody, self._log_positions, settle
                )
            return self._links[host]


def _of_host(device: DeviceInfo, host: str) -> DeviceInfo:
    return replace(device, host=host, uid=f"{host}/{device.uid}")


def _unusable(backend: str, host: str, reason: str) -> DeviceInfo:
    return DeviceInfo(backend, 0, f"{host}/?".lstrip("/"), host, "", 0, 0, frozenset(), (), reason, host)


def _told(answer: object) -> str:
    return (
        answer.reason
        if isinstance(answer, Refused | Untold)
        else f"its agent answered {type(answer).__name__}"
    )
