"""Answers the open lines of a batch, as many at a time as keep the engine busy."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from trivet.errors import RequestError
from trivet_web.batch.forms import OK, Answered, Form, Request, read_answer
from trivet_web.batch.input_file import InputLine
from trivet_web.batch.journal import Journal


class Site(Protocol):
    """What answers requests; thread-safe."""

    def answer(self, request: Request) -> Answered:
        """Raises: what ends the batch."""

    def end_all(self) -> None:
        """Let the requests under way end soon."""


class Progress(Protocol):
    """Who is told."""

    def update(self) -> None:
        """A line has been answered."""


@dataclass(frozen=True, slots=True)
class Result:
    """A line's, ready to be written."""

    index: int
    data: bytes
    is_failed: bool
    num_tokens: int


def run_batch(
    site: Site,
    form: Form,
    lines: Iterable[InputLine],
    journal: Journal,
    progress: Progress,
    num_threads: int,
) -> None:
    """Every line that the journal does not have; no more than `num_threads` are in memory.

    Raises: EngineEnded; ConfigError where the journal cannot be written. What was answered stands.
    """
    open_lines = (line for line in lines if not journal.is_done(line.index))
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="line")
    pending: set[Future[Result]] = set()
    try:
        for line in open_lines:
            pending.add(pool.submit(answer_line, site, form, line))
            if len(pending) >= num_threads:
                pending = _take(pending, journal, progress)
        while pending:
            pending = _take(pending, journal, progress)
    except BaseException:
        site.end_all()  # the threads come back with errors that nobody reads
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _take(pending: set[Future[Result]], journal: Journal, progress: Progress) -> set[Future[Result]]:
    """Wait for one at least and write down what there is."""
    done, rest = wait(pending, return_when=FIRST_COMPLETED)
    for future in sorted(done, key=lambda one: one.exception() is not None):  # what was answered stands
        result = future.result()
        journal.append(result.index, result.data, is_failed=result.is_failed, num_tokens=result.num_tokens)
        progress.update()
    return rest


def answer_line(site: Site, form: Form, line: InputLine) -> Result:
    """On a thread of its own. Raises: what `Site.answer` does."""
    try:
        request = form.request(line)
    except RequestError as error:
        return Result(line.index, form.fault(line, error), True, 0)
    answered = site.answer(request)
    tokens = read_answer(answered).usage.completion_tokens
    return Result(line.index, form.result(line, answered), answered.status != OK, tokens)
