"""Whole messages over a stream socket between rank 0 and another rank."""

from __future__ import annotations

import select
import socket

LENGTH_BYTES = 8


class Frames:
    """One end. Blocking; `send` and `receive` each by one thread at a time."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def send(self, message: bytes) -> None:
        """Raises: OSError where the other end has gone."""
        self._stream.sendall(len(message).to_bytes(LENGTH_BYTES, "little") + message)

    def receive(self) -> bytes:
        """Waits for the next message. Raises: EOFError where the other end has gone."""
        return self._read(int.from_bytes(self._read(LENGTH_BYTES), "little"))

    def has_message(self, timeout_s: float) -> bool:
        """Whether `receive` would find something, or the other end has gone."""
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def begins_with(self, first: bytes) -> bool:
        """Whether the message that waits does; reads nothing. False where the other end has gone."""
        try:
            return self._stream.recv(LENGTH_BYTES + len(first), socket.MSG_PEEK)[LENGTH_BYTES:] == first
        except ConnectionError:
            return False

    def has_ended(self) -> bool:
        """Whether the other end has gone and nothing is left to read."""
        try:
            return self.has_message(0) and not self._stream.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return True

    def fileno(self) -> int:
        """For waiting on several at once."""
        return self._stream.fileno()

    def wait_for_end(self) -> None:
        """Returns when the other end has been closed, by its process or with it; reads nothing."""
        poll = select.poll()
        poll.register(self._stream, select.POLLRDHUP)
        while not poll.poll():
            continue

    def close(self) -> None:
        """Idempotent."""
        self._stream.close()

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._stream.recv(size - len(parts))
            except ConnectionError:
                part = b""
            if not part:
                raise EOFError("the other end has been closed")
            parts += part
        return bytes(parts)
