"""The one thread that serves every request which no thread of its own waits for.

It is woken by what comes into a mailbox and by sockets that can be written again, and gives each guest a
short turn. A turn never waits: what may wait is run by a thread of the pool, which wakes the pump when it is
done. What nobody foresaw ends the whole process, so that gunicorn starts another: without this thread every
stream would stand still for ever.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from enum import Enum, auto

logger = logging.getLogger(__name__)
TICK_S = 0.25  # how often deadlines are looked at
EXIT_CRASHED = 1  # gunicorn starts another worker; at 3 and 4 it would give up


class Next(Enum):
    """What a guest waits for after its turn."""

    WAKE = auto()  # `Pump.wake`, or its `due_s`
    TURN = auto()  # nothing: another turn after those of the others
    WRITABLE = auto()  # its socket, as well as all that WAKE means
    NOTHING = auto()  # it leaves


class Guest(ABC):
    """A request in the care of the pump. Everything here is called by the pump's thread."""

    due_s: float = math.inf  # CLOCK_MONOTONIC: it gets a turn then
    has_left = False
    blocked_fd: int | None = None  # while it waits for its socket

    @abstractmethod
    def turn(self, now: float) -> Next:
        """Do what can be done without waiting."""

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
    """Create it after the fork; `close` ends the thread and forgets its guests."""

    def __init__(self) -> None:
        self.turned_s = time.monotonic()  # when the thread last came round
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._has_rung = False
        self._woken: deque[Guest] = deque()
        self._guests: set[Guest] = set()
        self._blocked: dict[int, Guest] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)
        self._thread.start()

    def wake(self, guest: Guest) -> None:
        """Give it a turn soon; the first one makes it a guest. Any thread, never waits."""
        self._woken.append(guest)
        if not self._has_rung:
            self._has_rung = True
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        self._closing = True
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._bell)

    # ---- the pump's thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._come_round()
        finally:
            if not self._closing:
                logger.critical("pump=crashed exit_code=%d", EXIT_CRASHED, exc_info=sys.exc_info()[1])
                os._exit(EXIT_CRASHED)  # SystemExit would end this thread only

    def _come_round(self) -> None:
        wait_s = 0.0 if self._woken else max(0.0, self.turned_s + TICK_S - time.monotonic())
        for fd, _events in self._epoll.poll(wait_s):
            if fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            else:
                self._on_writable(self._blocked[fd])
        self._has_rung = False  # before the queue is counted: who comes later rings again
        now = time.monotonic()
        for _ in range(len(self._woken)):
            self._give_turn(self._woken.popleft(), now)
        if now >= self.turned_s + TICK_S:
            for guest in [one for one in self._guests if one.due_s <= now]:
                self._give_turn(guest, now)
            self.turned_s = now

    def _on_writable(self, guest: Guest) -> None:
        self._unblock(guest)
        guest.on_writable()
        self._woken.append(guest)

    def _give_turn(self, guest: Guest, now: float) -> None:
        if guest.has_left:  # woken twice
            return
        outcome = guest.turn(now)
        if outcome is Next.NOTHING:
            guest.has_left = True
            self._guests.discard(guest)
            self._unblock(guest)
            guest.leave()
            return
        self._guests.add(guest)
        if outcome is Next.TURN:
            self._woken.append(guest)
        elif outcome is Next.WRITABLE and guest.blocked_fd is None:
            guest.blocked_fd = guest.fileno()
            self._blocked[guest.blocked_fd] = guest
            self._epoll.register(guest.blocked_fd, select.EPOLLOUT)

    def _unblock(self, guest: Guest) -> None:
        if guest.blocked_fd is not None:
            del self._blocked[guest.blocked_fd]
            self._epoll.unregister(guest.blocked_fd)
            guest.blocked_fd = None
