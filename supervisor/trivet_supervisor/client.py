"""How web and CLI reach the supervisor. Never needed for a request: engines are spoken to directly."""

from __future__ import annotations

import time

import msgspec
import zmq

from trivet.config import Paths
from trivet_supervisor.protocol import GetStatus, Request, ShutDown, SupervisorStatus, Wake

ANSWER_TIMEOUT_S = 1.0
OTHER_VERSION = "it is of another version of Trivet than who asks: start `trivet serve` anew"


class SupervisorClient:
    """Use it from any thread; each call has a socket of its own and takes at most `timeout_s`."""

    def __init__(self, paths: Paths, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._file = paths.run / "supervisor.sock"
        self._address = paths.supervisor_socket()
        self._timeout_ms = int(timeout_s * 1000)

    def wake(self) -> SupervisorStatus | None:
        """Say that the desired state changed; without it the supervisor finds out within a second."""
        return self._ask(Wake())

    def status(self) -> SupervisorStatus | None:
        """None where no supervisor answers."""
        return self._ask(GetStatus())

    def shut_down(self, drain_timeout_s: float) -> SupervisorStatus | None:
        """Ask it to end every engine, then itself."""
        return self._ask(ShutDown(drain_timeout_s))

    def _ask(self, request: Request) -> SupervisorStatus | None:
        if not self._file.exists():
            return None
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self._address)
            socket.send(msgspec.msgpack.encode(request))
            if not socket.poll(self._timeout_ms):
                return None
            try:
                return msgspec.msgpack.decode(socket.recv(), type=SupervisorStatus)
            except msgspec.DecodeError:  # it was started after Trivet was upgraded under this process
                return SupervisorStatus(
                    pid=0, version="", as_of=time.time(), num_followed=0, problem=OTHER_VERSION
                )
