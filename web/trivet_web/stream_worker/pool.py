"""The threads that answer requests: no more of them than are needed to get on.

`ThreadPoolExecutor` starts a thread for each request that finds none idle. A burst of 1,000 then had 300 of
them, for one interpreter: each took 40 kB, the requests cost more than with few, and the main thread and the
pump waited up to 0.4 s for their turn. Here there are more than a few only where work has waited for a while,
and only for a while: the last one that became idle is the first to work, and who stays idle leaves.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")

NUM_AT_ONCE = 8  # threads that are started as soon as there is work for them
PATIENCE_S = 0.05  # of work that waits, until there is a thread more
IDLE_S = 10.0  # of a thread beyond those, until it leaves
COMPLAIN_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class _Work:
    call: Callable[[], Any]
    future: Future[Any]
    since_s: float  # CLOCK_MONOTONIC

    def do(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self.call())
            except BaseException as error:  # of whoever asks the future
                self.future.set_exception(error)
                del self  # which the error's traceback has, and would keep with its request


class Pool(Executor):
    """Work is begun in the order in which it came, but for what is urgent. Thread-safe."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._lacks_threads = threading.Condition(self._lock)
        self._urgent: deque[_Work] = deque()
        self._work: deque[_Work] = deque()
        self._num_threads = 0  # that live, or are about to
        self._idle: list[threading.Condition] = []  # of threads that nobody has woken
        self._num_begun = 0  # works
        self._is_shut = False
        self._complained_s = 0.0  # that no thread can be started
        threading.Thread(target=self._grow, name="pool-growth", daemon=True).start()

    @property
    def num_threads(self) -> int:
        """That live, or are about to."""
        return self._num_threads

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Never waits. Raises: RuntimeError once it is shut down, and at no other time."""
        return self._add(partial(call, *args, **kwargs))

    def submit_urgent(self, call: Callable[..., T], /, *args: Any) -> Future[T]:
        """As `submit`, before all that waits."""
        return self._add(partial(call, *args), is_urgent=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What it has taken is done, and its threads end then; nobody waits for them here."""
        with self._lock:
            self._is_shut = True
            while self._idle:
                self._idle.pop().notify()
            self._lacks_threads.notify()

    def _add(self, call: Callable[[], T], *, is_urgent: bool = False) -> Future[T]:
        work = _Work(call, Future(), time.monotonic())
        with self._lock:
            if self._is_shut:
                raise RuntimeError("the pool is shut down")
            (self._urgent if is_urgent else self._work).append(work)
            count = 0
            if self._idle:
                self._idle.pop().notify()
            elif self._num_threads < NUM_AT_ONCE:
                count = self._counted(1)
            else:
                self._lacks_threads.notify()
        self._start(count)
        return work.future

    def _counted(self, wanted: int) -> int:
        """How many of them may be started, and count as threads from now on. With the lock held."""
        count = min(wanted, self._max_threads - self._num_threads)
        self._num_threads += count
        return count

    def _start(self, count: int) -> None:
        """Without the lock: a start waits for the interpreter, and everybody would wait for the lock.

        Where none can be started the others go on, and it is tried again.
        """
        for number in range(count):
            try:
                threading.Thread(target=self._serve, name="pool").start()
            except RuntimeError as error:  # a limit of the account, or of the container
                with self._lock:
                    self._num_threads -= count - number
                    self._complain(error)
                    self._lacks_threads.notify()
                return

    def _complain(self, error: RuntimeError) -> None:
        now = time.monotonic()
        if now >= self._complained_s + COMPLAIN_INTERVAL_S:
            self._complained_s = now
            logger.warning("threads=%d of=%d error=%s", self._num_threads, self._max_threads, error)

    def _serve(self) -> None:
        """Body of a thread."""
        bell = threading.Condition(self._lock)
        while (work := self._next(bell)) is not None:
            work.do()
            del work  # else it lives, and all of its request, until there is another

    def _next(self, bell: threading.Condition) -> _Work | None:
        """None: the thread shall end, and counts no more."""
        with self._lock:
            was_idle = False
            while not (self._urgent or self._work):
                if self._is_shut or (was_idle and self._num_threads > NUM_AT_ONCE):
                    self._num_threads -= 1
                    return None
                self._idle.append(bell)
                bell.wait(IDLE_S if self._num_threads > NUM_AT_ONCE else None)
                if was_idle := bell in self._idle:  # nobody has woken it
                    self._idle.remove(bell)
            self._num_begun += 1
            return (self._urgent or self._work).popleft()

    def _grow(self) -> None:
        """Body of a thread: there shall be one for work that has waited."""
        num_begun = 0
        while True:
            with self._lock:
                while not (self._urgent or self._work):
                    if self._is_shut:
                        return
                    self._lacks_threads.wait()
                    num_begun = self._num_begun
            time.sleep(PATIENCE_S)
            count = 0
            with self._lock:
                stands_still = self._num_begun == num_begun
                num_begun = self._num_begun  # what threads begin that are started now shows that it goes on
                oldest_s = min(
                    (queue[0].since_s for queue in (self._urgent, self._work) if queue), default=math.inf
                )
                if time.monotonic() >= oldest_s + PATIENCE_S:
                    num_waiting = len(self._urgent) + len(self._work)
                    count = self._counted(min(num_waiting, self._num_threads if stands_still else 1) or 1)
            self._start(count)
