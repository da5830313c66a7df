"""Limits of keys over all web processes of a site: requests a minute, requests at once.

Counted in an SQLite file of the run directory: exact whichever process a request reaches, and never waiting
for the disk. What it knows is worth nothing after a reboot, and a process that was killed gives its places
back. While the file cannot be written (a full disk) requests are let through, with a warning.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trivet.errors import RateLimited
from trivet_supervisor.launchers.process_table import start_time
from trivet_web.accounts.principal import Principal

logger = logging.getLogger(__name__)
FILE = "limits.db"  # in the run directory
MINUTE_S = 60.0
BUSY_S = 2.0
LEAVING_S = 0.05  # who has read the end of an answer may come again before its place is written free
MAX_WAITERS = 2  # for that, of a process: who is beyond its limit shall hold no threads
AGAIN_S = 1.0  # until a place is given back again, that could not be
_TABLES = """
CREATE TABLE IF NOT EXISTS rates (key_id INTEGER PRIMARY KEY, full_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS running
    (id INTEGER PRIMARY KEY, key_id INTEGER NOT NULL, pid INTEGER NOT NULL, born REAL NOT NULL);
CREATE INDEX IF NOT EXISTS running_of_key ON running (key_id);
"""


class Limits:
    """One a web process, made after the fork. Thread-safe."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: the same for all processes of the host, as CLOCK_MONOTONIC is."""
        self._clock = clock
        self._lock = threading.Lock()
        self._left: deque[int] = deque()  # places that are free, and are not written so yet
        self._has_left = threading.Event()
        self._closing = threading.Event()
        self._waiters = threading.BoundedSemaphore(MAX_WAITERS)
        self._pid, self._born = os.getpid(), start_time(os.getpid())
        with open(os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # of processes that find a damaged file at once, one makes a new one
            try:
                self._connection = _connect(file)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # a disk that is full, no damage
                    raise
                logger.warning("%s is damaged and made anew: %s", file, error)
                for end in ("", "-wal", "-shm"):
                    Path(f"{file}{end}").unlink(missing_ok=True)
                self._connection = _connect(file)
        self._thread = threading.Thread(target=self._give_back, name="limits", daemon=True)
        self._thread.start()

    def count(self, principal: Principal) -> None:
        """A request comes. Raises: RateLimited beyond `requests_per_minute`; all of them may come at once."""
        per_minute = principal.requests_per_minute
        if per_minute is None:
            return
        wait_s = 0.0
        with self._writing() as is_written:
            if is_written:
                wait_s = self._wait_s(principal.key_id, MINUTE_S / per_minute)
        if wait_s > 0:
            raise RateLimited(
                f"{principal.name} has had its requests of this minute ({per_minute}); try again in "
                f"{math.ceil(wait_s)} s",
                retry_after_s=math.ceil(wait_s),
            )

    def enter(self, principal: Principal) -> Callable[[], None]:
        """A request begins to be served. Returns: to be called once when it ends; it never waits.

        Raises: RateLimited beyond `max_concurrency`.
        """
        most = principal.max_concurrency
        if most is None:
            return _nothing
        place = self._enter(principal.key_id, most)
        if place == 0 and self._waiters.acquire(blocking=False):
            try:
                time.sleep(LEAVING_S)
                place = self._enter(principal.key_id, most)
            finally:
                self._waiters.release()
        if place == 0:
            raise RateLimited(
                f"{principal.name} has as many requests under way as it may have ({most}); try again when "
                "one of them has ended"
            )
        return _nothing if place is None else lambda: self._leave(place)

    def close(self) -> None:
        """What is under way in this process is over."""
        self._closing.set()
        self._has_left.set()
        self._thread.join()
        with self._lock:
            with suppress(sqlite3.Error):  # a full disk: who is asked next sees that this process has ended
                self._connection.execute("DELETE FROM running WHERE pid = ?", (self._pid,))
            self._connection.close()

    def _wait_s(self, key_id: int, interval_s: float) -> float:
        """The bucket is known by the moment at which it will be full again."""
        now_s = self._clock()
        row = self._connection.execute("SELECT full_s FROM rates WHERE key_id = ?", (key_id,)).fetchone()
        full_s = now_s if row is None else max(now_s, row[0])
        if full_s - now_s > MINUTE_S + interval_s:  # of before a reboot, or of a stricter limit
            full_s = now_s
        full_s += interval_s
        if (wait_s := full_s - now_s - MINUTE_S) > 1e-6:
            return wait_s
        self._connection.execute("INSERT OR REPLACE INTO rates VALUES (?, ?)", (key_id, full_s))
        return 0.0

    def _enter(self, key_id: int, most: int) -> int | None:
        """The place; 0: there is none; None: they cannot be counted."""
        with self._writing() as is_written:
            return self._place(key_id, most) if is_written else None

    def _place(self, key_id: int, most: int) -> int:
        """0: there is none."""
        if self._num_running(key_id) >= most:
            self._forget_dead()
            if self._num_running(key_id) >= most:
                return 0
        cursor = self._connection.execute(
            "INSERT INTO running (key_id, pid, born) VALUES (?, ?, ?)", (key_id, self._pid, self._born)
        )
        return int(cursor.lastrowid or 0)

    def _leave(self, place: int) -> None:
        """By whoever ends a request: the thread of all streams, too, which must not wait for the file."""
        self._left.append(place)
        self._has_left.set()

    def _give_back(self) -> None:
        """Body of a thread: until it is written, since nobody else knows that the place is free."""
        while not self._closing.is_set():
            self._has_left.wait()
            self._has_left.clear()
            while self._left and not self._closing.is_set():
                oldest = self._left[0]
                with self._writing():
                    pass  # each transaction gives them back
                if self._left and self._left[0] == oldest:
                    self._closing.wait(AGAIN_S)

    def _num_running(self, key_id: int) -> int:
        row = self._connection.execute("SELECT count(*) FROM running WHERE key_id = ?", (key_id,)).fetchone()
        return int(row[0])

    def _forget_dead(self) -> None:
        for pid, born in self._connection.execute("SELECT DISTINCT pid, born FROM running").fetchall():
            if start_time(pid) != born:
                self._connection.execute("DELETE FROM running WHERE pid = ? AND born = ?", (pid, born))

    @contextmanager
    def _writing(self) -> Iterator[bool]:
        """One transaction, which gives back what is left, too; false where there can be none."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                left = [(place, self._pid) for place in self._left]  # more may be appended meanwhile
                self._connection.executemany("DELETE FROM running WHERE id = ? AND pid = ?", left)
            except sqlite3.Error as error:
                self._give_up(error)
                yield False
                return
            try:
                yield True
                self._connection.execute("COMMIT")
                for _ in left:
                    self._left.popleft()
            except sqlite3.Error as error:
                self._give_up(error)

    def _give_up(self, error: sqlite3.Error) -> None:
        logger.warning("limits of keys are not counted: %s", error)
        if self._connection.in_transaction:
            with suppress(
                sqlite3.Error
            ):  # a disk that fails: SQLite has rolled it back itself, or does so next
                self._connection.execute("ROLLBACK")


def _connect(file: Path) -> sqlite3.Connection:
    """Raises: sqlite3.DatabaseError."""
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")
        connection.executescript(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


def _nothing() -> None:
    """There is no place to give back."""
