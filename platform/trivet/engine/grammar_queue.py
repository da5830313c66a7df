"""Compiles the grammars of new sequences beside the engine's loop.

A grammar takes a millisecond, or a second if it is huge; meanwhile the loop goes on and the sequence waits
here. Each is tried first where it can do no harm (`grammar_trial`): for a short time, then, while nobody
waits for a first try, for a longer one. So each of a hundred hostile ones holds the others up for 0.1 s,
and one that is known to be hostile for none.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from trivet.engine.grammar import Grammar, GrammarCompiler
from trivet.engine.grammar_trial import GrammarTrial
from trivet.engine.queue_pace import QueuePace
from trivet.engine.sequence import Sequence
from trivet.errors import DeadlinePassed, Overloaded, RequestError, TrivetError, Unavailable
from trivet.structured_outputs import StructuredOutputsParams

logger = logging.getLogger(__name__)

QUICK_S = 0.1  # of processor time: 20 times what a schema of 200 fields takes
SLOW_S = 2.0  # 4 times what an enum of 1 MB takes
SLOW_NICENESS = 5  # more than a quick one's
MAX_WAITING = 256
MAX_SLOW = 16  # grammars that wait for their second try
MAX_REFUSED = 1024  # grammars whose refusal is kept
CLOSE_S = 10.0


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
    is_second: bool = False  # the first try was too short
    is_done: bool = False  # `take` may hand it out
    is_cancelled: bool = False  # nobody waits for it: it is not begun


class GrammarQueue:
    """First come, first served, by one thread; the loop's thread calls all methods."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        trial: GrammarTrial,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: trial: closed with the queue; wake: called by the thread when `take` has something."""
        self._compiler = compiler
        self._trial = trial
        self._wake = wake
        self._clock = clock
        self._pace = QueuePace(clock)
        self._open: dict[str, _Job] = {}  # in order
        self._quick: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Of the thread, by grammar:
        self._slow: OrderedDict[bytes, list[_Job]] = OrderedDict()
        self._refused: OrderedDict[bytes, RequestError] = OrderedDict()
        # Now: where the host has no thread left later, the loop and its sequences would end with the request.
        self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._open)

    def submit(self, sequence: Sequence, params: StructuredOutputsParams) -> None:
        """Raises: Overloaded."""
        if len(self._open) >= MAX_WAITING:
            raise Overloaded(
                f"{len(self._open)} requests wait for their grammar; retry later",
                retry_after_s=self._pace.retry_after_s(len(self._open) / 2),  # half as many by then
            )
        if not self._open:
            self._pace.restart()
        job = self._open[sequence.request_id] = _Job(sequence, params, self._compiler.cached(params))
        if job.grammar is not None:
            job.is_done = True
            return
        self._quick.put(job)

    def cancel(self, request_id: str) -> None:
        """Forget the sequence, if it waits here."""
        job = self._open.pop(request_id, None)
        if job is not None:
            job.is_cancelled = True

    def take(self) -> list[Compiled]:
        """Sequences that may go on, or end with an error, in their order."""
        self._end_at_deadlines()
        # The newest is looked at first: what is before one that is done is done by then, too.
        done = [job for job in reversed(self._open.values()) if job.is_done]
        for job in reversed(done):
            del self._open[job.sequence.request_id]
            job.sequence.grammar = job.grammar
            self._pace.admitted()
        return [Compiled(job.sequence, job.error) for job in reversed(done)]

    def close(self) -> None:
        """The thread ends after what it is at, which the trial's end cuts short."""
        for request_id in list(self._open):
            self.cancel(request_id)
        self._quick.put(None)
        self._trial.end()
        self._thread.join(CLOSE_S)

    def _end_at_deadlines(self) -> None:
        now = self._clock()
        for job in self._open.values():
            deadline_s = job.sequence.deadline_s
            if not job.is_done and deadline_s is not None and deadline_s <= now:
                job.is_done = job.is_cancelled = True
                job.error = DeadlinePassed(
                    "its grammar was not compiled in time; send it again later, or with a longer timeout",
                    retry_after_s=self._pace.retry_after_s(len(self._open)),
                )

    # ---- the thread ----

    def _run(self) -> None:
        while (jobs := self._next()) is not None:
            living = [job for job in jobs if not job.is_cancelled]
            if living and self._compile(living):
                for job in living:
                    job.is_done = True
                self._wake()
        self._trial.close()

    def _next(self) -> list[_Job] | None:
        """Those of one grammar: a first try, or a second where nobody waits for a first; None: the end."""
        try:
            job = self._quick.get(block=not self._slow)
        except queue.Empty:
            return self._slow.popitem(last=False)[1]
        return None if job is None else [job]

    def _compile(self, jobs: list[_Job]) -> bool:
        """False where they are put off."""
        params = jobs[0].params
        try:
            if not self._passes(jobs):
                return False
            for job in jobs:
                job.grammar = self._compiler.compile(params)
        except TrivetError as error:
            _fail(jobs, error)
        except Exception as error:  # a border: without this thread no grammar would be compiled any more
            logger.exception("a grammar is not compiled")
            _fail(jobs, Unavailable(f"the grammar was not compiled: {type(error).__name__}: {error}"))
        return True

    def _passes(self, jobs: list[_Job]) -> bool:
        """False where they are put off. Raises: TrivetError."""
        params, is_second = jobs[0].params, jobs[0].is_second
        name = blake2b(msgspec.msgpack.encode(params), digest_size=16).digest()
        if name in self._refused:
            raise self._refused[name]
        if self._compiler.cached(params) is not None:
            return True
        if is_second or name not in self._slow:
            try:
                if self._trial.run(params, *((SLOW_S, SLOW_NICENESS) if is_second else (QUICK_S, 0))):
                    return True
                if is_second:
                    raise params.refused(
                        f"takes more than {SLOW_S:g} s to compile, or too much memory; simplify it"
                    )
            except RequestError as error:
                self._remember(name, error)
                raise
        self._put_off(name, jobs)
        return False

    def _remember(self, name: bytes, error: RequestError) -> None:
        self._refused[name] = error
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    def _put_off(self, name: bytes, jobs: list[_Job]) -> None:
        """Raises: Overloaded."""
        if name not in self._slow and len(self._slow) >= MAX_SLOW:
            raise Overloaded(
                f"{MAX_SLOW} grammars that take longer than {QUICK_S:g} s to compile wait already; "
                "retry later",
                retry_after_s=self._pace.retry_after_s(len(self._open) / 2),
            )
        for job in jobs:
            job.is_second = True
        self._slow.setdefault(name, []).extend(jobs)


def _fail(jobs: list[_Job], error: TrivetError) -> None:
    for job in jobs:
        job.error = job.error or error
