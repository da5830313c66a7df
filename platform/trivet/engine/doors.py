"""The engine's sockets as others find them: bound as its launch order says, announced where ports are chosen.

On one host the addresses are files whose names both sides know. Over tcp the kernel chooses the ports (two
engines that start at once can never take the same), so the engine writes down what it has bound, beside its
order; its launcher reads it there and tells the supervisor.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from trivet.bound_socket import is_as_bound, keep_bound
from trivet.config import engine_address
from trivet.endpoints import Endpoints, keep_alive
from trivet.errors import Unavailable
from trivet.messages import LaunchOrder

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

ZAP_DOMAIN = "engine"


def endpoints_file(run_dir: str | Path, instance_id: str) -> Path:
    """Where an engine that listens on tcp says where; whole or absent."""
    return Path(run_dir) / f"engine-{instance_id}.endpoints"


class OnlyThe:
    """Admits one client's key (pyzmq's `CredentialsProvider`)."""

    def __init__(self, client_key: str) -> None:
        self._client_key = client_key.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the holder of this public key may connect."""
        return key == self._client_key


class Doors:
    """Binds the sockets of one engine process; `close` at its end."""

    def __init__(self, order: LaunchOrder) -> None:
        self._order = order
        self._bound: dict[str, str] = {}  # by kind, over tcp
        self._guard: ThreadAuthenticator | None = None
        self._server_key = self._secret_key = b""
        if order.listen:
            from zmq.auth.thread import ThreadAuthenticator  # and asyncio, which no engine of one host needs

            self._server_key, self._secret_key = zmq.curve_keypair()
            self._guard = ThreadAuthenticator(zmq.Context.instance())
            self._guard.start()
            self._guard.configure_curve_callback(
                domain=ZAP_DOMAIN, credentials_provider=OnlyThe(order.client_key)
            )

    @property
    def is_remote(self) -> bool:
        """Whether the other sides may be on other hosts, with other clocks."""
        return bool(self._order.listen)

    def open(self, socket: zmq.Socket[bytes], kind: str) -> None:
        """Bind it. Raises: Unavailable where the address is not this host's."""
        if not self._order.listen:
            socket.bind(self._file_address(kind))
            return
        socket.curve_server = 1
        socket.curve_publickey, socket.curve_secretkey = self._server_key, self._secret_key
        socket.zap_domain = ZAP_DOMAIN.encode()
        socket.ipv6 = ":" in self._order.listen
        keep_alive(socket)
        try:
            socket.bind(f"tcp://{_bracketed(self._order.listen)}:*")
        except zmq.ZMQError as error:
            raise Unavailable(
                f"the engine cannot listen on {self._order.listen}: {error}; its launcher gave this address"
            ) from error
        self._bound[kind] = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def keep_open(self, socket: zmq.Socket[bytes], kind: str) -> None:
        """Bind again where somebody has deleted the socket's file. Raises: zmq.ZMQError."""
        if not self._order.listen:
            keep_bound(socket, self._file_address(kind))

    def is_open(self, kind: str) -> bool:
        """False where the socket's file is gone."""
        return bool(self._order.listen) or is_as_bound(self._file_address(kind))

    def announce(self) -> None:
        """Over tcp, once all three are bound. Raises: Unavailable where it cannot be written."""
        if not self._order.listen:
            return
        file = endpoints_file(self._order.run_dir, self._order.instance_id)
        told = Endpoints(**self._bound, server_key=self._server_key.decode())
        scratch = file.with_name(f"{file.name}.new")  # "engine-ID.new" is the next order's
        try:
            with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                out.write(msgspec.json.encode(told))
            scratch.rename(file)
        except OSError as error:
            raise Unavailable(f"endpoints {file} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        """The sockets are closed before."""
        if self._guard is not None:
            self._guard.stop()
            self._guard = None

    def _file_address(self, kind: str) -> str:
        return engine_address(self._order.run_dir, self._order.instance_id, kind)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
