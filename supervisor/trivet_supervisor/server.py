"""The supervisor's own socket: web workers wake it, everybody may ask how it is."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import zmq

from trivet.bound_socket import keep_bound
from trivet_supervisor.protocol import Request, SupervisorStatus

logger = logging.getLogger(__name__)

MAX_REQUESTS_A_TURN = 100


class Server:
    """A ROUTER in the 0700 run directory: who may connect may manage the site."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._address = address
        self.socket = context.socket(zmq.ROUTER)  # for the caller's poller
        self.socket.linger = 500
        self.socket.bind(address)
        self._decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)

    def serve(self, handle: Callable[[Request], SupervisorStatus]) -> None:
        """Answer every request that has come."""
        for _ in range(MAX_REQUESTS_A_TURN):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                status = handle(self._decoder.decode(frames[-1]))
            except msgspec.DecodeError as error:
                logger.warning("a request cannot be read: %s", error)
                continue
            self.socket.send_multipart([frames[0], msgspec.msgpack.encode(status)])

    def keep_bound(self) -> None:
        """Bind again where somebody has deleted the socket's file: nobody could reach us any more.

        Raises: zmq.ZMQError where it cannot be bound, as in a run directory that is gone.
        """
        keep_bound(self.socket, self._address)

    def close(self) -> None:
        self.socket.close()
