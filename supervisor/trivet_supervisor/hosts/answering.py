"""Answers the messages of a ROUTER socket on several threads: one that takes long holds up no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq

logger = logging.getLogger(__name__)

INSIDE = "inproc://answers"


class Answering:
    """`run` in one thread of the process, for ever."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        outside: zmq.Socket[bytes],
        answer: Callable[[bytes], bytes],
        num_threads: int,
    ) -> None:
        """Nothing is answered yet.

        Args:
            outside: bound.
            answer: called on any thread; does not raise.
        """
        self._context = context
        self._outside = outside
        self._answer = answer
        self._inside = context.socket(zmq.PULL)
        self._inside.bind(INSIDE)
        self._pool = ThreadPoolExecutor(num_threads)
        self._local = threading.local()

    def run(self) -> None:
        """For ever."""
        poller = zmq.Poller()
        poller.register(self._outside, zmq.POLLIN)
        poller.register(self._inside, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._outside in ready:
                *envelope, message = self._outside.recv_multipart()
                self._pool.submit(self._serve, envelope, message)
            if self._inside in ready:
                self._outside.send_multipart(self._inside.recv_multipart())

    def _serve(self, envelope: list[bytes], message: bytes) -> None:
        try:
            self._socket().send_multipart([*envelope, self._answer(message)])
        except Exception:  # a border: this thread's future is looked at by nobody
            logger.exception("a message is not answered")

    def _socket(self) -> zmq.Socket[bytes]:
        if not hasattr(self._local, "socket"):
            made: Any = self._context.socket(zmq.PUSH)
            made.connect(INSIDE)
            self._local.socket = made
        found: zmq.Socket[bytes] = self._local.socket
        return found
