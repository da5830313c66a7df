"""Runs the stored batches of a site, one after the other, in one of its web processes.

Whoever holds the lock runs them; the kernel gives it back when its process ends, however it ends, and
another process, or the next start, goes on from the journal: no line is asked twice but those that were
under way.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from flask import Flask

from trivet.errors import RequestError, TrivetError
from trivet_web.accounts.ownership import principal_behind
from trivet_web.accounts.site_accounts import EXTENSION as ACCOUNTS
from trivet_web.accounts.site_accounts import SiteAccounts
from trivet_web.batch.forms import OK, BatchResult
from trivet_web.batch.input_file import FormName, InputFile, read_lines, scan
from trivet_web.batch.journal import Journal
from trivet_web.batch.online_site import BatchStopped, EndpointForm, OnlineSite
from trivet_web.batch.run import run_batch
from trivet_web.batch.stored_batch import (
    ACTIVE,
    BatchFault,
    BatchFaults,
    BatchObject,
    RequestCounts,
    Shelf,
)
from trivet_web.stored_objects import new_id

logger = logging.getLogger(__name__)
NUM_THREADS = 32  # lines under way
POLL_S = 2.0  # for batches that another process was asked for
TELL_S = 1.0  # between counts


class BatchRunner:
    """One a web process. Its thread starts with the first batch, or at once where there are some already."""

    def __init__(self, app: Flask, shelf: Shelf, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._shelf = shelf
        self._is_draining = is_draining
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        if any(self._open_batches()):
            self.wake()

    def wake(self) -> None:
        """There is a new batch."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
                self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Ask no more lines; the batch goes on at the next start."""
        self._closing.set()
        self._wake.set()

    def join(self) -> None:
        """Wait for the lines under way."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped():
            self._wake.clear()
            with _lock(self._shelf.folder / "batches" / "lock") as is_ours:
                if is_ours:
                    self._run_open()
            self._wake.wait(POLL_S)

    def _run_open(self) -> None:
        while not self._is_stopped():
            batch = next(self._open_batches(), None)
            if batch is None:
                return
            try:
                BatchRun(self._app, self._shelf, batch, self._is_stopped).run()
            except BatchStopped:
                return
            except Exception as error:  # a border: one batch must not keep others from running
                logger.exception("batch=%s failed", batch.id)
                _fail(self._shelf, batch.id, error)

    def _open_batches(self) -> Iterator[BatchObject]:
        """Oldest first."""
        for batch_id in reversed(self._shelf.batches.ids()):
            batch = self._shelf.batches.get(batch_id)
            if batch is not None and batch.status in ACTIVE:
                yield batch

    def _is_stopped(self) -> bool:
        return self._closing.is_set() or self._is_draining()


class BatchRun:
    """One batch from where it stands to its end."""

    def __init__(self, app: Flask, shelf: Shelf, batch: BatchObject, is_stopped: Callable[[], bool]) -> None:
        self._shelf = shelf
        self._batch = batch
        self._is_stopped = is_stopped
        self._form = EndpointForm(batch.endpoint)
        accounts: SiteAccounts = app.extensions[ACCOUNTS]
        self._site = OnlineSite(
            app,
            lambda: principal_behind(accounts, batch.owner, batch.key_id),
            lambda: is_stopped() or bool(self._ended_by()),
        )
        self._told_s = 0.0
        self._journal: Journal | None = None

    def run(self) -> None:
        """Raises: BatchStopped where it goes on later."""
        results = self._shelf.results(self._batch.id)
        if not results.exists():
            given = self._scanned()
            if given is None:
                return
            self._answer(given, results)
        self._finish(results)

    def update(self) -> None:
        """A line has been answered."""
        if time.monotonic() - self._told_s >= TELL_S:
            self._tell()

    def _scanned(self) -> InputFile | None:
        """None where it cannot be run; the batch says why."""
        path = self._shelf.content(self._batch.input_file_id)
        try:
            given = scan(path)
            if given.form is not FormName.BATCH:
                raise RequestError(
                    "the file has no line with custom_id, method, url and body; send OpenAI's batch lines"
                )
        except TrivetError as error:
            _fail(self._shelf, self._batch.id, error)
            return None
        return given

    def _answer(self, given: InputFile, results: Path) -> None:
        """Raises: BatchStopped."""
        about = {"input": given.sha256, "endpoint": self._batch.endpoint}
        self._journal = journal = Journal(results, about, given.num_lines)
        try:
            self._set(
                status="in_progress",
                in_progress_at=self._batch.in_progress_at or int(time.time()),
                request_counts=RequestCounts(given.num_lines, *self._counted()),
            )
            try:
                with closing(read_lines(given.path)) as lines:
                    run_batch(self._site, self._form, lines, journal, self, NUM_THREADS)
            except BatchStopped:
                if not self._ended_by():
                    raise
            self._leave_out(given, journal)
            self._tell()
            journal.finish()
        finally:
            journal.close()

    def _leave_out(self, given: InputFile, journal: Journal) -> None:
        """Lines that are not asked any more."""
        why = self._ended_by()
        for line in read_lines(given.path):
            if not journal.is_done(line.index):
                error = RequestError(f"the batch was {why} before this line was asked")
                journal.append(line.index, self._form.fault(line, error), is_failed=True, num_tokens=0)

    def _finish(self, results: Path) -> None:
        """Results that are good to one file, the others to another."""
        names = {False: self._batch.output_file_id or new_id("file")}
        names[True] = self._batch.error_file_id or new_id("file")
        self._set(status="finalizing", finalizing_at=int(time.time()))
        (self._shelf.folder / "files").mkdir(mode=0o700, parents=True, exist_ok=True)
        counts = {False: 0, True: 0}
        contents = [self._shelf.content(names[kind]) for kind in (False, True)]
        with results.open("rb") as lines, _opened(contents[0]) as good, _opened(contents[1]) as bad:
            for line in lines:
                is_failed = _is_failed(line)
                counts[is_failed] += 1
                (bad if is_failed else good).write(line)
        made = {
            kind: self._shelf.new_file(
                names[kind], f"{self._batch.id}_{name}.jsonl", "batch_output", self._batch.owner
            ).id
            for kind, name in ((False, "output"), (True, "error"))
            if counts[kind]
        }
        for kind in (False, True):
            if kind not in made:
                self._shelf.content(names[kind]).unlink()
        status = self._ended_by() or "completed"
        self._set(
            status=status,
            output_file_id=made.get(False),
            error_file_id=made.get(True),
            request_counts=RequestCounts(sum(counts.values()), counts[False], counts[True]),
            **{f"{status}_at": int(time.time())},
        )
        results.unlink(missing_ok=True)
        self._shelf.cancel_mark(self._batch.id).unlink(missing_ok=True)

    def _ended_by(self) -> str:
        """What ended it before its lines did; empty while nothing has."""
        if self._shelf.cancel_mark(self._batch.id).exists():
            return "cancelled"
        return "expired" if time.time() > self._batch.expires_at else ""

    def _counted(self) -> tuple[int, int]:
        tally = None if self._journal is None else self._journal.tally
        return (0, 0) if tally is None else (tally.lines - tally.failed, tally.failed)

    def _tell(self) -> None:
        self._told_s = time.monotonic()
        total = self._batch.request_counts.total
        self._set(request_counts=RequestCounts(total, *self._counted()))

    def _set(self, **changes: Any) -> None:
        self._batch = msgspec.structs.replace(self._batch, **changes)
        self._shelf.batches.put(self._batch.id, self._batch)


def _is_failed(line: bytes) -> bool:
    response = msgspec.json.decode(line, type=BatchResult).response
    return response is None or response.status_code != OK


def _fail(shelf: Shelf, batch_id: str, error: Exception) -> None:
    batch = shelf.batches.get(batch_id)
    if batch is not None:
        code = error.code if isinstance(error, TrivetError) else "server_error"
        text = str(error).replace(f"{shelf.content(batch.input_file_id)}: ", "")
        message = text if isinstance(error, TrivetError) else "internal error; the server's log has it"
        faults = BatchFaults([BatchFault(code, message)])
        failed = msgspec.structs.replace(batch, status="failed", failed_at=int(time.time()), errors=faults)
        shelf.batches.put(batch_id, failed)


def _opened(path: Path) -> Any:
    path.touch(mode=0o600)
    return path.open("wb")


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Whether it is ours for the block."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)
