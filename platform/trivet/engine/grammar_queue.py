"""Compiles the grammars of new sequences beside the engine's loop.

A grammar takes a millisecond, or a second if it is huge; meanwhile the loop goes on and the sequence
waits here. The library drops the GIL while it compiles.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from trivet.engine.grammar import Grammar, GrammarCompiler
from trivet.engine.sequence import Sequence
from trivet.errors import DeadlinePassed, Overloaded, RequestError, TrivetError
from trivet.structured_outputs import StructuredOutputsParams

TIMEOUT_S = 10.0  # of one grammar
MAX_WAITING = 256
RETRY_AFTER_S = 5


class Compiled(NamedTuple):
    """A sequence whose grammar is there, or why there is none."""

    sequence: Sequence
    error: TrivetError | None


@dataclass(slots=True, eq=False)
class _Job:
    sequence: Sequence
    params: StructuredOutputsParams
    grammar: Grammar | None = None
    error: TrivetError | None = None
    begun_s: float = 0.0
    is_done: bool = False  # `take` may hand it out
    has_ended: bool = False  # the thread is not at it any more, or is given up
    is_cancelled: bool = False  # nobody waits for it: it is not begun


class GrammarQueue:
    """First come, first served, by one thread; the loop's thread calls all methods."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: wake: called by the compiling thread when `take` has something."""
        self._compiler = compiler
        self._wake = wake
        self._clock = clock
        self._open: dict[str, _Job] = {}  # in order
        self._current: _Job | None = None  # what the thread is at, or was last
        self._todo: queue.SimpleQueue[_Job | None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def submit(self, sequence: Sequence, params: StructuredOutputsParams) -> None:
        """Raises: Overloaded."""
        if len(self._open) >= MAX_WAITING:
            raise Overloaded(
                f"{len(self._open)} requests wait for their grammar; retry later", retry_after_s=RETRY_AFTER_S
            )
        job = self._open[sequence.request_id] = _Job(sequence, params)
        self._thread().put(job)

    def cancel(self, request_id: str) -> None:
        """Forget the sequence, if it waits here."""
        job = self._open.pop(request_id, None)
        if job is not None:
            job.is_cancelled = True

    def take(self) -> list[Compiled]:
        """Sequences that may go on, or end with an error, in their order."""
        self._give_up_what_is_late()
        self._end_at_deadlines()
        # The newest is looked at first: what is before one that is done is done by then, too.
        done = [job for job in reversed(self._open.values()) if job.is_done]
        for job in reversed(done):
            del self._open[job.sequence.request_id]
            job.sequence.grammar = job.grammar
        return [Compiled(job.sequence, job.error) for job in reversed(done)]

    def close(self) -> None:
        """The thread ends after what it is at."""
        for request_id in list(self._open):
            self.cancel(request_id)
        if self._todo is not None:
            self._todo.put(None)

    def _end_at_deadlines(self) -> None:
        now = self._clock()
        for job in self._open.values():
            deadline_s = job.sequence.deadline_s
            if not job.is_done and deadline_s is not None and deadline_s <= now:
                job.is_done = job.is_cancelled = True
                job.error = DeadlinePassed(
                    "its grammar was not compiled in time; send it again later, or with a longer timeout",
                    retry_after_s=RETRY_AFTER_S,
                )

    def _give_up_what_is_late(self) -> None:
        job = self._current
        if job is None or job.has_ended or self._clock() - job.begun_s <= TIMEOUT_S:
            return
        job.error = RequestError(
            f"structured_outputs: the grammar took more than {TIMEOUT_S:g} s to compile; simplify it",
            param="structured_outputs",
        )
        job.is_done = job.has_ended = True
        self._replace_thread()

    def _thread(self) -> queue.SimpleQueue[_Job | None]:
        """What the thread reads; started when it is first needed."""
        if self._todo is None:
            self._todo = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._todo,), name="grammars", daemon=True).start()
        return self._todo

    def _replace_thread(self) -> None:
        """Another one does what is left; the old one ends with what it is at."""
        assert self._todo is not None, "a job was submitted"
        old, self._todo = self._todo, None
        new = self._thread()
        with contextlib.suppress(queue.Empty):  # the old thread may be back, and take some of them
            while True:
                new.put(old.get_nowait())
        old.put(None)

    def _run(self, todo: queue.SimpleQueue[_Job | None]) -> None:
        while (job := todo.get()) is not None:
            if job.is_cancelled:
                continue
            job.begun_s = self._clock()
            self._current = job
            try:
                job.grammar = self._compiler.compile(job.params)
            except TrivetError as error:
                job.error = job.error or error
            job.is_done = job.has_ended = True
            self._wake()
