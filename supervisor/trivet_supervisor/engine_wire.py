"""Heart-beats from engines and control messages to them, over ZeroMQ (messages.py names the sockets)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from trivet.endpoints import Endpoints, connect
from trivet.messages import Beat, ControlRequest

logger = logging.getLogger(__name__)

RECONNECT_MS = 50
MAX_BEATS_A_TURN = 10_000


class EngineWire(Protocol):
    """What the supervisor says to engines and hears from them."""

    def follow(self, instance_id: str, endpoints: Endpoints) -> None:
        """Hear the instance's beats from now on. Raises: ConfigError where the site's keys cannot be read."""

    def forget(self, instance_id: str) -> None:
        """Hear them no more; idempotent."""

    def tell(self, instance_id: str, request: ControlRequest) -> None:
        """Send; delivered as soon as the engine's socket exists. Lost for one that is not followed yet."""

    def beats(self) -> list[Beat]:
        """What has come since the last call, in order."""


class ZmqWire:
    """`EngineWire` over one SUB socket for all engines and a DEALER to each.

    `tell` is for any thread, all else for one. A ZeroMQ socket may change threads with a lock in between.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key_file: Path | None = None) -> None:
        """Args: key_file: of the site's keys (`endpoints.client_keys`), for engines on other hosts."""
        self._context = context
        self._key_file = key_file
        self.socket = context.socket(zmq.SUB)  # for the caller's poller
        self.socket.linger = 0
        self.socket.rcvhwm = 0
        self.socket.reconnect_ivl = RECONNECT_MS
        self.socket.subscribe(b"")
        self._beat_addresses: dict[str, str] = {}
        self._controls: dict[str, zmq.Socket[bytes]] = {}
        self._controls_lock = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(Beat)

    def follow(self, instance_id: str, endpoints: Endpoints) -> None:
        """Hear the instance's beats from now on. Raises: ConfigError where the site's keys cannot be read."""
        self.forget(instance_id)
        connect(self.socket, endpoints.beat, endpoints.server_key, self._key_file)
        self._beat_addresses[instance_id] = endpoints.beat
        control = self._context.socket(zmq.DEALER)
        control.linger = 0
        control.reconnect_ivl = RECONNECT_MS
        connect(control, endpoints.ctl, endpoints.server_key, self._key_file)
        with self._controls_lock:
            self._controls[instance_id] = control

    def forget(self, instance_id: str) -> None:
        """Hear them no more; idempotent."""
        address = self._beat_addresses.pop(instance_id, None)
        if address is not None:
            self.socket.disconnect(address)
            with self._controls_lock:
                if (control := self._controls.pop(instance_id, None)) is not None:
                    control.close()

    def tell(self, instance_id: str, request: ControlRequest) -> None:
        """Send; delivered as soon as the engine's socket exists."""
        with self._controls_lock:
            control = self._controls.get(instance_id)
            if control is None:
                return
            try:
                control.send(msgspec.msgpack.encode(request), zmq.NOBLOCK)
            except zmq.Again:  # the queue to a stopped process is full; signals follow
                logger.warning("instance=%s takes no control messages", instance_id)

    def beats(self) -> list[Beat]:
        """What has come since the last call, in order."""
        heard: list[Beat] = []
        while len(heard) < MAX_BEATS_A_TURN:
            try:
                heard.append(self._decoder.decode(self.socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
            except msgspec.DecodeError as error:
                logger.warning("a heart-beat cannot be read: %s", error)
        return heard

    def close(self) -> None:
        for instance_id in list(self._beat_addresses):
            self.forget(instance_id)
        self.socket.close()
