"""Runs the stored batches of a site in one of its web processes.

Whoever holds the lock runs them; the kernel gives it back when its process ends, however it ends, and
another process, or the next start, goes on from the journals: no line is asked twice but those that were
under way. The lock is in the run directory, where nothing is swept.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flask import Flask

from trivet_web.batch.round_robin import POLL_S, RoundRobin
from trivet_web.batch.stored_batch import Shelf

logger = logging.getLogger(__name__)
LOCK = "batches.lock"  # in the run directory


class BatchRunner:
    """One a web process. Its thread sleeps until the first batch comes, where there are none already."""

    def __init__(self, app: Flask, shelf: Shelf, lock: Path, is_draining: Callable[[], bool]) -> None:
        self._lock = lock
        self._is_draining = is_draining
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._turns = RoundRobin(app, shelf, self._wake, self._is_stopped)
        if any(shelf.open_batches()):
            self.wake()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is a new batch."""
        self._wake.set()

    def stop(self) -> None:
        """Ask no more lines; the batches go on at the next start."""
        self._closing.set()
        self._wake.set()

    @property
    def is_at_work(self) -> bool:
        """Whether lines may be under way."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the lines under way."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        self._wake.wait()
        self._wake.clear()
        while not self._is_stopped():
            try:
                with _locked(self._lock) as is_ours:
                    if is_ours:
                        self._turns.run()
            except OSError as error:  # of the lock, mostly: no descriptor is free, or the disk is full
                logger.warning("batches=stopped error=%s; tried again in %g s", error, POLL_S)
            except Exception:  # a border: the batches of this site go on in a moment
                logger.exception("batches=stopped")
            self._wake.wait(POLL_S)
            self._wake.clear()  # also where another process has the lock, which looks for itself

    def _is_stopped(self) -> bool:
        return self._closing.is_set() or self._is_draining()


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether it is ours for the block. Raises: OSError."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except BlockingIOError:
            is_ours = False
        yield is_ours
    finally:
        os.close(descriptor)
