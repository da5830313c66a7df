"""Serves every request which no thread of its own waits for: by turns, in the relay's thread.

It is woken by what comes into a mailbox and by sockets that can be written again, and gives each guest a
short turn. What the turns made is written after all of them: the kernel's part of a write drives ours out of
the processor's caches (measured with 1,000 streams: 2 us a token). A turn never waits: what may wait is run
by a thread of the pool, which wakes the pump when it is done. (A thread of its own, measured with 1,000
streams: it is woken by the first piece of a step and then fights the relay for the interpreter through all
the others.)
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
from abc import ABC, abstractmethod
from collections import deque
from enum import Enum, auto

logger = logging.getLogger(__name__)
TICK_S = 0.25  # how often deadlines are looked at
MEASURE_S = 1.0  # how often what guests hold is added up
MAX_HELD_BYTES = 512 << 20  # by streams that are not read, and by whole answers until they are sent


class Next(Enum):
    """What a guest waits for after its turn."""

    WAKE = auto()  # `Pump.wake`, or its `due_s`
    SEND = auto()  # `send`, after the turns of the others
    TURN = auto()  # nothing: another turn after those of the others
    WRITABLE = auto()  # its socket, as well as all that WAKE means
    NOTHING = auto()  # it leaves


WAKE, SEND, TURN = Next.WAKE, Next.SEND, Next.TURN  # Python 3.11 needs 0.1 us to find a member in its enum


class Guest(ABC):
    """A request in the care of the pump. Everything here is called by the pump's thread.

    What is touched for each token of a thousand streams is in no cache: there, and in what such a guest reads
    from, `__slots__` keep an object and its attributes in one place of memory.
    """

    __slots__ = ("blocked_fd", "due_s", "has_joined", "has_left")

    def __init__(self, due_s: float = math.inf) -> None:
        """Args: due_s: CLOCK_MONOTONIC, it gets a turn then."""
        self.due_s = due_s
        self.has_joined = self.has_left = False
        self.blocked_fd: int | None = None  # while it waits for its socket

    @property
    def held_bytes(self) -> int:
        """That it keeps for a client."""
        return 0

    def give_way(self) -> bool:
        """All of them hold too much: whether this one may be let go for that."""
        return False

    @abstractmethod
    def turn(self, now: float) -> Next:
        """Do what can be done without waiting."""

    def send(self, now: float) -> Next:
        """Write what the turn has made."""
        raise NotImplementedError

    @abstractmethod
    def leave(self) -> None:
        """Called once, when the pump has forgotten it and its socket."""

    def fileno(self) -> int:
        """Of the socket that WRITABLE is about."""
        raise NotImplementedError

    def on_writable(self) -> None:
        """Its socket takes bytes again; a turn follows."""
        raise NotImplementedError


class Pump:
    """`Relay.host` gives it a thread; `close` it when that has ended."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._is_closed = False  # its descriptors are somebody else's then
        self._closed_lock = threading.Lock()
        self._thread_id = 0
        self._woken: deque[Guest] = deque()
        self._guests: set[Guest] = set()
        self._blocked: dict[int, Guest] = {}
        self._looked_s = 0.0
        self._measured_s = 0.0

    def wake(self, guest: Guest) -> None:
        """Give it a turn soon; the first one makes it a guest. Any thread, never waits."""
        self._woken.append(guest)
        if threading.get_ident() != self._thread_id:  # which comes round by itself
            with self._closed_lock:
                if not self._is_closed:
                    os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        with self._closed_lock:
            self._is_closed = True
            self._epoll.close()
            os.close(self._bell)

    def fileno(self) -> int:
        """Readable when a guest was woken or can write."""
        return self._epoll.fileno()

    def come_round(self, now: float) -> None:
        """A turn for each guest that was woken, that can write, or whose time has come."""
        self._thread_id = threading.get_ident()
        for fd, _events in self._epoll.poll(0):
            if fd == self._bell:
                os.eventfd_read(self._bell)
            else:
                self._on_writable(self._blocked[fd])
        self.serve_woken(now)
        if now >= self._looked_s + TICK_S:
            self._looked_s = now
            self._woken += [one for one in self._guests if one.due_s <= now]
            self.serve_woken(now)
            if now >= self._measured_s + MEASURE_S:
                self._measured_s = now
                self._make_room()
        if self._woken:
            os.eventfd_write(self._bell, 1)

    def serve_woken(self, now: float) -> None:
        """A turn for each guest that was woken."""
        self._thread_id = threading.get_ident()
        woken = [self._woken.popleft() for _ in range(len(self._woken))]
        for guest in [one for one in woken if self._give_turn(one, now)]:
            if not guest.has_left and (outcome := guest.send(now)) is not WAKE:  # woken twice; nearly always
                self._heed(guest, outcome)

    def _on_writable(self, guest: Guest) -> None:
        self._unblock(guest)
        guest.on_writable()
        self._woken.append(guest)

    def _give_turn(self, guest: Guest, now: float) -> bool:
        """Whether it has something to send."""
        if guest.has_left:  # woken twice
            return False
        if not guest.has_joined:
            guest.has_joined = True
            self._guests.add(guest)
        outcome = guest.turn(now)
        if outcome is SEND:  # nearly always
            return True
        self._heed(guest, outcome)
        return False

    def _heed(self, guest: Guest, outcome: Next) -> None:
        if outcome is WAKE:
            return
        if outcome is Next.NOTHING:
            self._let_go(guest)
        elif outcome is TURN:
            self._woken.append(guest)
        else:
            self._block(guest)

    def _let_go(self, guest: Guest) -> None:
        guest.has_left = True
        self._guests.discard(guest)
        self._unblock(guest)
        guest.leave()

    def _make_room(self) -> None:
        """Thousands of answers, each within its own bound, would take all memory; the largest go."""
        excess_bytes = sum([guest.held_bytes for guest in self._guests]) - MAX_HELD_BYTES
        if excess_bytes <= 0:
            return
        for guest in sorted(self._guests, key=lambda one: -one.held_bytes):
            held_bytes = guest.held_bytes
            if excess_bytes <= 0 or not held_bytes:
                return
            if guest.give_way():
                excess_bytes -= held_bytes
                self._let_go(guest)

    def _block(self, guest: Guest) -> None:
        if guest.blocked_fd is None:
            guest.blocked_fd = guest.fileno()
            self._blocked[guest.blocked_fd] = guest
            self._epoll.register(guest.blocked_fd, select.EPOLLOUT)

    def _unblock(self, guest: Guest) -> None:
        if guest.blocked_fd is not None:
            del self._blocked[guest.blocked_fd]
            self._epoll.unregister(guest.blocked_fd)
            guest.blocked_fd = None
