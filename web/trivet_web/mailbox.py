"""What the relay thread puts down for one request thread: pieces and losses, bounded in bytes."""

from __future__ import annotations

import queue
from typing import NamedTuple, TypeAlias

from trivet.errors import TrivetError
from trivet.messages import Piece

CAPACITY_BYTES = 1 << 20  # of one stream: a reader that is so far behind has stopped reading
WHOLE_CAPACITY_BYTES = 64 << 20  # of a whole answer, which no client can slow down: one step may bring MBs
MAX_READ = 64  # items a turn, so that a flood cannot keep a reader from looking up
# Measured by tracemalloc on decoded pieces (Python 3.11, 64-bit).
_PIECE_BYTES = 384
_TOKEN_BYTES = 32
_LOGPROB_BYTES = 160
_TOP_BYTES = 104  # of each of the likeliest tokens


class ClientGone(TrivetError):
    """The client closed its connection; nobody will read an answer."""

    status, code = 499, "client_closed_request"


class Arrival(NamedTuple):
    """A piece of one sequence, and when the relay received it (CLOCK_MONOTONIC seconds)."""

    choice: int
    piece: Piece
    at_s: float


class Loss(NamedTuple):
    """The end of one sequence, or of the whole request (choice None), without a last piece."""

    choice: int | None
    error: TrivetError


Item: TypeAlias = Arrival | Loss


class Mailbox:
    """One reader. Each byte count has one writer, so neither needs a lock."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._capacity_bytes = capacity_bytes
        self._put_bytes = 0  # written by the relay thread
        self._read_bytes = 0  # written by the reader

    def put(self, choice: int, piece: Piece, at_s: float) -> bool:
        """Relay thread only. False where the reader is too far behind: nothing was put."""
        size, unread = _size(piece), self._put_bytes - self._read_bytes
        if unread and unread + size > self._capacity_bytes:  # a reader who has read all takes any piece
            return False
        self._put_bytes += size
        self._items.put(Arrival(choice, piece, at_s))
        return True

    def fail(self, error: TrivetError, choice: int | None = None) -> None:
        """Any thread. Always fits."""
        self._items.put(Loss(choice, error))

    def read(self, timeout_s: float) -> list[Item]:
        """Wait for the first item, then take what else is there; empty after `timeout_s`."""
        try:
            items = [self._items.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while len(items) < MAX_READ:
            try:
                items.append(self._items.get_nowait())
            except queue.Empty:
                break
        self._read_bytes += sum(_size(item.piece) for item in items if isinstance(item, Arrival))
        return items


def _size(piece: Piece) -> int:
    """About what a piece holds in memory."""
    logprobs = (*(piece.logprobs or ()), *(piece.prompt_logprobs or ()))
    return (
        _PIECE_BYTES
        + 4 * len(piece.text)
        + _TOKEN_BYTES * len(piece.token_ids)
        + _LOGPROB_BYTES * len(logprobs)
        + _TOP_BYTES * sum(len(logprob.top) for logprob in logprobs)
        + len(piece.embedding or b"")
    )
