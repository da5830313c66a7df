"""`agent_calls.Hosts` and `agent_calls.Claims` over a Ray cluster."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import zmq

from trivet.config import Paths
from trivet.endpoints import client_keys
from trivet.errors import ConfigError, Unavailable
from trivet.messages import LaunchOrder
from trivet_supervisor.hosts.agent_calls import HostSilent
from trivet_supervisor.hosts.agent_way import AgentAddress, call_agent
from trivet_supervisor.hosts.over_ray.bridge_process import BridgeProcess
from trivet_supervisor.hosts.over_ray.calls import Claim, Host, KeepAgents, ListClaims, Release

logger = logging.getLogger(__name__)

ROUND_TIMEOUT_S = 45.0
PING_TIMEOUT_S = 8.0
CLAIM_TIMEOUT_S = 5.0
FORGOTTEN_S = 900.0  # a host that is no node any more, and of which nothing was heard for so long
WHOLE_SHARE = 0.5  # who takes more than that of a device leaves nothing that Ray should give away
RESOURCES = {"cuda": "GPU", "ascend": "NPU"}  # what Ray calls them; others: the backend's own name


class _Known(msgspec.Struct):
    """A host, also while Ray is away; written down without what is only of this process."""

    agent: AgentAddress | None
    resources: dict[str, float] = {}
    trouble: str = ""


class RayHosts:
    """Nothing runs before it is first asked. Thread-safe."""

    def __init__(self, address: str, paths: Paths) -> None:
        """Args: address: of the cluster's head; empty: the one that runs on this host."""
        self._cluster = address
        self._key_file = paths.engine_keys_file
        self._known_file = paths.home / "ray-hosts.json"
        self._known: dict[str, _Known] | None = None  # None: not read yet
        self._heard_s: dict[str, float] = {}
        self._bridge = BridgeProcess(paths, self._arguments, self._round)
        self._lock = threading.Lock()
        self._taken_s: dict[str, float] = {}  # by lease; infinite while its start is on its way
        self._orders: dict[str, tuple[float, list[LaunchOrder]]] = {}  # asked when, by host

    # ---- Hosts ----

    def names(self) -> Mapping[str, str]:
        """As they were known a moment ago, or when Ray was last there."""
        self._bridge.begin()
        return {name: known.agent.address if known.agent else "" for name, known in self._hosts().items()}

    def trouble(self) -> str:
        """Why there may be hosts that nobody knows of; empty while Ray answers."""
        return self._bridge.failure

    def call(self, host: str, message: bytes, timeout_s: float) -> bytes:
        """Raises: HostSilent."""
        known = self._hosts().get(host)
        if known is None:
            raise HostSilent("it is no node of the Ray cluster")
        if known.agent is None:
            raise HostSilent(known.trouble or "no agent runs there yet")
        try:
            keys = client_keys(self._key_file)
            answer = call_agent(zmq.Context.instance(), known.agent, keys, message, timeout_s)
        except HostSilent as error:
            raise HostSilent("; ".join(filter(None, (str(error), known.trouble)))) from error
        except ConfigError as error:
            raise HostSilent(str(error)) from error
        self._heard_s[host] = time.monotonic()
        return answer

    def close(self) -> None:
        """Agents and engines stay."""
        self._bridge.close()

    # ---- Claims ----

    def take(self, host: str, launch: LaunchOrder) -> None:
        """A Ray that is away gives nothing to anybody: then it is claimed when it is back.

        Raises: Unavailable where Ray has given it to others.
        """
        claim = self._claim(host, launch, CLAIM_TIMEOUT_S)
        if claim is None or self._bridge.failure:
            return
        self._taken_s[launch.lease] = math.inf
        try:
            self._bridge.ask(claim, CLAIM_TIMEOUT_S)
        except HostSilent as error:
            logger.warning("host=%s lease=%s is not claimed yet: %s", host, launch.lease[:8], error)
        except Unavailable:
            self._taken_s.pop(launch.lease, None)
            raise

    def taken(self, lease: str) -> None:
        """As `Claims.taken`."""
        if lease in self._taken_s:
            self._taken_s[lease] = time.monotonic()

    def settle(self, host: str, orders: Sequence[LaunchOrder], asked_s: float) -> None:
        """With the next round."""
        self._orders[host] = asked_s, list(orders)

    def _claim(self, host: str, launch: LaunchOrder, wait_s: float) -> Claim | None:
        """None where Ray does not count these devices there."""
        resource = RESOURCES.get(launch.backend.partition("-")[0], launch.backend)
        known = self._hosts().get(host)
        if known is None or resource not in known.resources:
            return None
        share = float(launch.settings.get("gpu_memory_utilization", 1.0))
        share = 1.0 if share > WHOLE_SHARE else share
        return Claim(host, launch.lease, resource, max(1, len(launch.device_uids)), share, wait_s)

    # ---- rounds, on the thread of the bridge ----

    def _arguments(self) -> list[str]:
        return [self._cluster, client_keys(self._key_file).public]

    def _round(self) -> None:
        """Raises: Unavailable."""
        self._bridge.ask(ListClaims(), PING_TIMEOUT_S)  # a driver may wait for a head that is gone for ever
        site_key = client_keys(self._key_file).public
        self._learn(self._bridge.ask(KeepAgents(site_key), ROUND_TIMEOUT_S).hosts)
        if self._orders:
            self._settle_all(set(self._bridge.ask(ListClaims(), ROUND_TIMEOUT_S).claims))

    def _learn(self, hosts: Mapping[str, Host]) -> None:
        before, now = self._hosts(), time.monotonic()
        after: dict[str, _Known] = {}
        for name, host in hosts.items():
            agent = host.agent or (before[name].agent if name in before else None)
            after[name] = _Known(agent, host.resources, host.trouble)
            self._heard_s[name] = now
        for name, known in before.items():
            if name not in after and now - self._heard_s.setdefault(name, now) < FORGOTTEN_S:
                after[name] = _Known(known.agent, known.resources, "it is no node of the Ray cluster now")
        if after == before:
            return
        if after.keys() != before.keys():
            logger.info("ray_hosts=%s", ",".join(sorted(after)))
        with self._lock:
            self._known = after
        try:
            scratch = self._known_file.with_suffix(".new")
            scratch.write_bytes(msgspec.json.encode(after))
            scratch.replace(self._known_file)
        except OSError as error:  # a supervisor that comes while Ray is away will not find the new ones
            logger.warning("file=%s cannot be written: %s", self._known_file, error)

    def _settle_all(self, claims: set[tuple[str, str]]) -> None:
        """Raises: Unavailable."""
        told, self._orders = self._orders, {}
        for host, (asked_s, orders) in told.items():
            wanted = {order.lease: order for order in orders}
            for name, lease in claims:
                if name == host and lease not in wanted and self._taken_s.get(lease, -math.inf) < asked_s:
                    self._taken_s.pop(lease, None)
                    self._bridge.ask(Release(host, lease), CLAIM_TIMEOUT_S)
            for lease, order in wanted.items():
                claim = self._claim(host, order, 0.0)
                is_young = self._taken_s.get(lease, -math.inf) >= asked_s
                if claim is not None and not is_young and (host, lease) not in claims:
                    logger.info("host=%s lease=%s is claimed again", host, lease[:8])
                    self._bridge.ask(claim, CLAIM_TIMEOUT_S)

    def _hosts(self) -> dict[str, _Known]:
        with self._lock:
            if self._known is None:
                self._known = _read(self._known_file)
            return self._known


def _read(file: Path) -> dict[str, _Known]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, _Known])
    except (OSError, msgspec.MsgspecError):
        return {}
