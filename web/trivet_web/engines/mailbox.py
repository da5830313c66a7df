"""What the relay thread puts down for one request: pieces and losses, bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from trivet.errors import TrivetError
from trivet.messages import FinishReason, Piece

CAPACITY_BYTES = 1 << 20  # of one stream: a reader that is so far behind has stopped reading
WHOLE_CAPACITY_BYTES = 64 << 20  # of a whole answer, which no client can slow down: one step may bring MBs
MAX_READ = 64  # items a turn, so that a flood cannot keep a reader from looking up
# Measured by tracemalloc on decoded pieces (Python 3.11, 64-bit).
PIECE_BYTES = 384
_TOKEN_BYTES = 32
_LOGPROB_BYTES = 160
_TOP_BYTES = 104  # of each of the likeliest tokens
_FAILED = (FinishReason.ERROR, FinishReason.ABORT)


class ClientGone(TrivetError):
    """The client closed its connection; nobody will read an answer."""

    status, code = 499, "client_closed_request"


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A piece of one sequence, and when the relay received it (CLOCK_MONOTONIC seconds).

    One is made for each token of each stream: as a struct in C, which no garbage collection looks at.
    """

    choice: int
    piece: Piece
    at_s: float
    size_bytes: int = 0  # that it takes in a mailbox, about


class Loss(msgspec.Struct, frozen=True):
    """The end of one sequence, or of the whole request (choice None), without a last piece."""

    choice: int | None
    error: TrivetError
    size_bytes: int = 0  # always fits


Item: TypeAlias = Arrival | Loss


class Mailbox:
    """One reader, which waits or asks to be told. Each count has one writer, so none needs a lock."""

    __slots__ = (
        *("_items", "_waits", "_capacity_bytes", "_put_bytes", "_read_bytes", "_tell", "_has_told"),
        *("is_abandoned", "is_overrun", "may_wait", "ends_slowly"),
    )

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._items: deque[Item] = deque()  # many append, the reader alone takes: both are atomic
        self._waits: threading.Event | None = None  # of a reader that waits in a thread of its own
        self._capacity_bytes = capacity_bytes
        self._put_bytes = 0  # written by the relay thread
        self._read_bytes = 0  # written by the reader
        self._tell: Callable[[], None] | None = None
        self._has_told = False
        self.is_abandoned = False  # the client has gone: there is nobody to read for
        self.is_overrun = False  # it was refused a piece
        self.may_wait = False  # the next read may go to another replica, and wait for the registry first,
        self.ends_slowly = False  # or it has the end of an answer that is written to the disk then

    def put(self, choice: int, piece: Piece, at_s: float) -> bool:
        """Relay thread only. False where the reader is too far behind: nothing was put."""
        size = PIECE_BYTES + 4 * len(piece.text) + _TOKEN_BYTES * len(piece.token_ids)
        if piece.logprobs is not None or piece.prompt_logprobs is not None or piece.embedding is not None:
            size += _figures_size(piece)
        unread = self._put_bytes - self._read_bytes
        if unread and unread + size > self._capacity_bytes:  # a reader who has read all takes any piece
            self.is_overrun = True
            return False
        self._put_bytes += size
        self._items.append(Arrival(choice, piece, at_s, size))
        reason = piece.finish_reason
        if piece.failure is not None or (reason is not None and (self.ends_slowly or reason in _FAILED)):
            self.may_wait = True  # after the item: a read in between does not take back what it has not seen
        self._on_put()
        return True

    def fail(self, error: TrivetError, choice: int | None = None) -> None:
        """Any thread. Always fits."""
        if isinstance(error, ClientGone):
            self.is_abandoned = True
        self._items.append(Loss(choice, error))
        if choice is not None:
            self.may_wait = True
        self._has_told = False  # also a reader who was told of a piece and cannot take it now
        self._on_put()

    def listen(self, tell: Callable[[], None] | None) -> None:
        """Call `tell`, which must not wait, when there is something to read: now, and after each read."""
        self._tell, self._has_told = tell, False
        if self.num_unread:
            self._on_put()

    @property
    def unread_bytes(self) -> int:
        """About what it holds."""
        return self._put_bytes - self._read_bytes

    @property
    def num_unread(self) -> int:
        """Items; more may come at any time."""
        return len(self._items)

    def read(self, timeout_s: float) -> list[Item]:
        """Wait for the first item, then take what else is there; empty after `timeout_s`."""
        might_wait = self.may_wait
        self._has_told = self.may_wait = False
        items = self._items
        if not items and timeout_s > 0:
            self._wait(timeout_s)
        if len(items) == 1:  # nearly always
            item = items.popleft()
            self._read_bytes += item.size_bytes
            return [item]
        taken = [items.popleft() for _ in range(min(len(items), MAX_READ))]
        if items and might_wait:  # for one of those that are left, it may be
            self.may_wait = True
        self._read_bytes += sum([item.size_bytes for item in taken])
        return taken

    def _wait(self, timeout_s: float) -> None:
        """Who puts sees the event, or the items are seen here: one of both."""
        self._waits = threading.Event()
        if not self._items:
            self._waits.wait(timeout_s)
        self._waits = None

    def _on_put(self) -> None:
        if (waits := self._waits) is not None:
            waits.set()
        if not self._has_told and self._tell is not None:
            self._has_told = True
            self._tell()


def _figures_size(piece: Piece) -> int:
    """About what a piece holds in memory beside its tokens."""
    logprobs = (*(piece.logprobs or ()), *(piece.prompt_logprobs or ()))
    size = _LOGPROB_BYTES * len(logprobs) + _TOP_BYTES * sum(len(one.top) for one in logprobs)
    return size + len(piece.embedding or b"")
