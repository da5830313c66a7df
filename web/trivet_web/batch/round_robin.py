"""Lines of all open batches in turn, over the threads of one process: no batch waits for another's end.

A batch whose model cannot answer asks one line now and then, and leaves the threads to the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

from flask import Flask

from trivet_web.batch.input_file import InputLine
from trivet_web.batch.journal import JournalHeld, JournalUnwritable
from trivet_web.batch.online_site import EngineEndedUnder, NotAnswered
from trivet_web.batch.run import Result
from trivet_web.batch.stored_batch import Shelf
from trivet_web.batch.stored_run import BatchRun
from trivet_web.batch.suspects import Suspects

logger = logging.getLogger(__name__)
NUM_THREADS = 32  # lines under way, and one of each batch that would have none
MAX_OPEN = 16  # batches at a time
POLL_S = 2.0  # for batches that another process was asked for
STEP_S = 0.1
GRACE_S = 30.0  # for the lines under way when a batch is cancelled or its time is over
AGAIN_S = 10.0  # until what could not be had is tried again: a journal that is held, disk, threads


class RoundRobin:
    """Of one thread."""

    def __init__(
        self, app: Flask, shelf: Shelf, wake: threading.Event, is_stopped: Callable[[], bool]
    ) -> None:
        """Args: wake: there may be a new batch."""
        self._app = app
        self._shelf = shelf
        self._wake = wake
        self._is_stopped = is_stopped
        self._runs: list[BatchRun] = []  # whose turn it is, first
        self._lines: dict[Future[Result], tuple[BatchRun, InputLine]] = {}
        self._grace: dict[str, float] = {}  # batch that is ended before its lines are → until when they may
        self._aside: dict[str, float] = {}  # batch that is not open → not before
        self._suspects = Suspects()
        self._looked_s = float("-inf")
        self._ask_again_s = float("-inf")  # no line before, since there is no thread for it

    def run(self) -> None:
        """Until no batch is open; or this process stops, and the lines under way have ended."""
        pool = ThreadPoolExecutor(NUM_THREADS + MAX_OPEN, thread_name_prefix="batch-line")
        self._looked_s = float("-inf")
        try:
            while not self._is_stopped():
                self._open_new()
                if not self._runs:
                    return
                self._ask(pool)
                self._settle()
                self._end_over()
            while self._lines:
                self._settle()
        finally:
            self._leave_all()
            pool.shutdown(cancel_futures=True)

    def _open_new(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < POLL_S and not self._wake.is_set():
            return
        self._wake.clear()
        self._looked_s = now_s
        opened = {run.batch_id for run in self._runs}
        try:
            waiting = [batch for batch in self._shelf.open_batches() if batch.id not in opened]
        except OSError as error:  # those that are open go on
            logger.warning("batches=unseen error=%s", error)
            return
        self._aside = {one.id: self._aside[one.id] for one in waiting if one.id in self._aside}
        due = [one for one in waiting if self._aside.get(one.id, 0.0) <= now_s]
        self._make_room(len(due) - (MAX_OPEN - len(self._runs)))
        for batch in sorted(due, key=lambda one: self._aside.get(one.id, 0.0)):  # stable: the oldest first
            if len(self._runs) == MAX_OPEN:
                return
            run = BatchRun(self._app, self._shelf, batch, self._suspects)
            self._runs.append(run)
            with self._leaving_on_error(run):
                run.open()

    def _make_room(self, num_wanted: int) -> None:
        """Batches without answers go behind those that are not open."""
        idle = [run for run in self._runs if run.is_stalled and not run.num_under_way]
        for run in idle[: max(0, num_wanted)]:
            self._leave(run, time.monotonic())

    def _ask(self, pool: ThreadPoolExecutor) -> None:
        """One line of each batch in turn, until none has one that it may ask."""
        num_lively = sum(not run.is_stalled for run in self._runs)
        share = max(1, NUM_THREADS // max(1, num_lively))
        asking = [run for run in self._runs if not run.ended_by()]
        while asking and time.monotonic() >= self._ask_again_s:
            for run in list(asking):
                line = None
                if run.num_under_way < 1 or (
                    not run.is_stalled and run.num_under_way < share and len(self._lines) < NUM_THREADS
                ):
                    with self._leaving_on_error(run):
                        line = run.take()
                if line is None:
                    asking.remove(run)
                else:
                    self._begin(pool, run, line)
        self._runs = self._runs[1:] + self._runs[:1]

    def _begin(self, pool: ThreadPoolExecutor, run: BatchRun, line: InputLine) -> None:
        answer: Future[Result] = Future()
        try:
            pool.submit(_fulfil, answer, run, line)
        except RuntimeError as error:  # a limit of threads: those that there are go on with what they have
            logger.warning("lines=%d no more can be asked now: %s", len(self._lines), error)
            self._ask_again_s = time.monotonic() + AGAIN_S
            if answer.cancel():  # the pool has queued it before it failed, and may have begun with it
                self._suspects.came_back(run.batch_id, line.index)
                run.put_back(line)
                return
        self._lines[answer] = (run, line)

    def _settle(self) -> None:
        """Wait for an answer, no longer than a step, and write down what there is."""
        if not self._lines:
            self._wake.wait(STEP_S)
            return
        done, _ = wait(self._lines, STEP_S, FIRST_COMPLETED)
        for future in done:
            run, line = self._lines.pop(future)
            self._suspects.came_back(run.batch_id, line.index)
            if run not in self._runs:
                continue
            with self._leaving_on_error(run):
                try:
                    run.settle(line, future.result())
                except EngineEndedUnder as error:
                    run.engine_ended(line, error.answered)
                except NotAnswered:
                    run.put_back(line)

    def _end_over(self) -> None:
        now_s = time.monotonic()
        for run in list(self._runs):
            with self._leaving_on_error(run):
                run.tell()
                if not run.is_answered:
                    if not run.ended_by():
                        continue
                    if now_s > self._grace.setdefault(run.batch_id, now_s + GRACE_S):
                        run.end_requests()
                if not run.num_under_way:
                    run.finish()
                    self._leave(run)

    @contextmanager
    def _leaving_on_error(self, run: BatchRun) -> Iterator[None]:
        """A border: one batch must not keep others from running."""
        try:
            yield
        except (JournalHeld, JournalUnwritable, OSError) as error:
            logger.warning("batch=%s goes on later: %s", run.batch_id, error)
            self._leave(run, time.monotonic() + AGAIN_S)
        except Exception as error:
            logger.exception("batch=%s failed", run.batch_id)
            self._fail(run, error)

    def _fail(self, run: BatchRun, error: Exception) -> None:
        try:
            run.fail(error)
        except Exception:  # also a border; tried again
            logger.exception("batch=%s cannot be ended", run.batch_id)
            self._leave(run, time.monotonic() + AGAIN_S)
        else:
            self._leave(run)

    def _leave(self, run: BatchRun, not_before_s: float | None = None) -> None:
        """Close it. Args: not_before_s: when it may be opened again; None: it has ended."""
        self._runs.remove(run)
        self._grace.pop(run.batch_id, None)
        if not_before_s is None:
            self._suspects.forget(run.batch_id)
        else:
            self._aside[run.batch_id] = not_before_s
        self._looked_s = float("-inf")  # there is room
        run.end_requests()
        with suppress(OSError):
            run.close()

    def _leave_all(self) -> None:
        """Nothing is kept of them: who opens them again finds them as they are on the disk by then."""
        for run in self._runs:
            run.end_requests()
            with suppress(OSError):
                run.close()
        for run, line in self._lines.values():
            self._suspects.came_back(run.batch_id, line.index)
        self._runs.clear()
        self._lines.clear()
        self._grace.clear()


def _fulfil(answer: Future[Result], run: BatchRun, line: InputLine) -> None:
    """Unless it was cancelled before."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(run.answer(line))
    except BaseException as error:  # whoever waits for the answer is told, whatever it is
        answer.set_exception(error)
