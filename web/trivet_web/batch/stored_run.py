"""One stored batch from where it stands to its end: what is asked next, what was answered, its two files."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from flask import Flask

from trivet.errors import ConfigError, RequestError, TrivetError
from trivet_web.accounts.ownership import principal_behind
from trivet_web.accounts.site_accounts import EXTENSION as ACCOUNTS
from trivet_web.accounts.site_accounts import SiteAccounts
from trivet_web.batch.forms import OK, Answered, BatchResult
from trivet_web.batch.input_file import FormName, InputFile, InputLine, read_lines, scan
from trivet_web.batch.journal import Journal
from trivet_web.batch.line_queue import LineQueue
from trivet_web.batch.online_site import EndpointForm, OnlineSite
from trivet_web.batch.run import Result, answer_line
from trivet_web.batch.stored_batch import BatchFault, BatchFaults, BatchObject, RequestCounts, Shelf
from trivet_web.batch.suspects import Suspects

TELL_S = 1.0  # between counts


class LineCancelled(RequestError):
    """Left out of a batch that was cancelled; OpenAI's code."""

    code = "batch_cancelled"


class LineExpired(RequestError):
    """Left out of a batch whose time was over; OpenAI's code."""

    code = "batch_expired"


class BatchRun:
    """Of one thread but for `answer`; `close` leaves the batch where it stands, to be opened again."""

    def __init__(self, app: Flask, shelf: Shelf, batch: BatchObject, suspects: Suspects) -> None:
        """Args: suspects: lines of all batches."""
        self._shelf = shelf
        self._batch = batch
        self._suspects = suspects
        self._form = EndpointForm(batch.endpoint)
        accounts: SiteAccounts = app.extensions[ACCOUNTS]
        self._site = OnlineSite(app, lambda: principal_behind(accounts, batch.owner, batch.key_id))
        self._under_way: set[int] = set()  # indices of lines
        self._asked: set[int] = set()  # and of those that got no answer, while it is open
        self._told_s = 0.0
        self._journal: Journal | None = None
        self._queue: LineQueue | None = None

    @property
    def batch_id(self) -> str:
        return self._batch.id

    @property
    def num_under_way(self) -> int:
        return len(self._under_way)

    @property
    def is_stalled(self) -> bool:
        """Its lines get no answers."""
        return self._queue is not None and self._queue.is_stalled

    @property
    def is_answered(self) -> bool:
        """Every line is."""
        return self._journal is None or self._journal.tally.lines == self._batch.request_counts.total

    def open(self) -> None:
        """Take up its journal, or begin it.

        Raises: JournalHeld, JournalUnwritable; RequestError where it cannot be run.
        """
        results = self._shelf.results(self._batch.id)
        if results.exists():  # a process ended between the results and the files that are made of them
            return
        given = self._scanned()
        about = {"input": given.sha256, "endpoint": self._batch.endpoint}
        self._journal = Journal(results, about, given.num_lines)
        self._queue = LineQueue(given.path, self._is_open)
        self._set(
            status="in_progress",
            errors=None,  # of an attempt that was left before its results
            in_progress_at=self._batch.in_progress_at or int(time.time()),
            request_counts=RequestCounts(given.num_lines, *self._counted()),
        )

    def take(self) -> InputLine | None:
        """The next line, which is under way from now on; None: there is none to be asked now."""
        if self._queue is None:
            return None
        while (line := self._queue.take()) is not None:
            if self._suspects.may_ask(self._batch.id, line.index):
                self._under_way.add(line.index)
                return line
            self._queue.pass_over()
        return None

    def answer(self, line: InputLine) -> Result:
        """On a thread of its own. Raises: NotAnswered, EngineEndedUnder."""
        return answer_line(self._site, self._form, line)

    def put_back(self, line: InputLine) -> None:
        """It got no answer."""
        self._under_way.discard(line.index)
        self._asked.add(line.index)
        if self._queue is not None:
            self._queue.put_back(line)

    def engine_ended(self, line: InputLine, answered: Answered) -> None:
        """Under the line, which is asked again, but not for ever. Raises: JournalUnwritable."""
        if self._suspects.lost(self._batch.id, line.index):
            self.settle(line, Result(line.index, self._form.result(line, answered), True, 0))
        else:
            self.put_back(line)

    def settle(self, line: InputLine, result: Result) -> None:
        """Write its answer down. Raises: JournalUnwritable."""
        assert self._journal is not None, "it is open"
        assert self._queue is not None, "it is open"
        self._under_way.discard(line.index)
        self._asked.discard(line.index)
        self._suspects.cleared(self._batch.id, line.index)
        self._queue.answered(line)
        self._journal.append(
            line.index, result.data, is_failed=result.is_failed, num_tokens=result.num_tokens
        )

    def tell(self) -> None:
        """Now and then: how many lines are done. Raises: OSError."""
        if self._journal is not None and time.monotonic() - self._told_s >= TELL_S:
            self._told_s = time.monotonic()
            total = self._batch.request_counts.total
            counts = RequestCounts(total, *self._counted())
            if counts != self._batch.request_counts:
                self._set(request_counts=counts)

    def ended_by(self) -> str:
        """What ended it before its lines did; empty while nothing has."""
        if self._shelf.cancel_mark(self._batch.id).exists():
            return "cancelled"
        return "expired" if time.time() > self._batch.expires_at else ""

    def end_requests(self) -> None:
        """Those under way end soon, without an answer."""
        self._site.end_all()

    def finish(self) -> None:
        """Its last state and its files. Raises: JournalUnwritable, OSError."""
        if self._batch.errors is not None:  # it had failed when its process ended: its results have gaps
            self._end_failed()
            return
        if self._journal is not None:
            self._leave_out(self._journal)
            self._journal.finish()
        self._set(status="finalizing", finalizing_at=int(time.time()))
        counts, num_expired = self._make_files()
        is_cancelled = self.ended_by() == "cancelled"
        status = "cancelled" if is_cancelled else "expired" if num_expired else "completed"
        self._end(status, counts)

    def fail(self, error: Exception) -> None:
        """It cannot go on; what was answered can be had. Raises: JournalUnwritable, OSError."""
        code, message = "server_error", "internal error; the server's log has it"
        if isinstance(error, TrivetError):
            code, message = error.code, error.message
        self._set(errors=BatchFaults([BatchFault(code, message)]))  # first: results alone look complete
        if self._journal is not None:
            self._journal.finish(with_gaps=True)
        self._end_failed()

    def close(self) -> None:
        """Idempotent."""
        if self._queue is not None:
            self._queue.close()
        if self._journal is not None:
            self._journal.close()

    def _is_open(self, index: int) -> bool:
        return index not in self._under_way and self._journal is not None and not self._journal.is_done(index)

    def _scanned(self) -> InputFile:
        """Raises: RequestError, whose message has no path of the server."""
        path = self._shelf.content(self._batch.input_file_id)
        name = f"the input file {self._batch.input_file_id}"
        try:
            given = scan(path)
        except ConfigError as error:
            why = "does not exist any more" if not path.exists() else "cannot be read"
            raise RequestError(f"{name} {why}; send it again", param="input_file_id") from error
        except RequestError as error:
            raise RequestError(error.message.replace(str(path), name), param="input_file_id") from error
        if given.form is not FormName.BATCH:
            raise RequestError(
                f"{name} has no line with custom_id, method, url and body; send OpenAI's batch lines",
                param="input_file_id",
            )
        return given

    def _leave_out(self, journal: Journal) -> None:
        """Errors for the lines that are not asked any more."""
        if self.is_answered:
            return
        why = self.ended_by()
        kind = LineCancelled if why == "cancelled" else LineExpired
        with closing(read_lines(self._shelf.content(self._batch.input_file_id))) as lines:
            for line in lines:
                if not journal.is_done(line.index):
                    was_asked = line.index in self._asked
                    how = "before this line was answered" if was_asked else "before this line was asked"
                    fault = self._form.fault(line, kind(f"the batch was {why} {how}"))
                    journal.append(line.index, fault, is_failed=True, num_tokens=0)

    def _make_files(self) -> tuple[RequestCounts, int]:
        """Results that are good in one file, the others in another; and how many lines expired.

        The files' ids follow from the batch's: made again after a crash, they are the same ones.
        """
        (self._shelf.folder / "files").mkdir(mode=0o700, parents=True, exist_ok=True)
        ids = {False: self._shelf.result_id(self._batch.id, "output")}
        ids[True] = self._shelf.result_id(self._batch.id, "error")
        counts = {False: 0, True: 0}
        num_expired = 0
        contents = [self._shelf.content(ids[kind]) for kind in (False, True)]
        results = self._shelf.results(self._batch.id)
        with results.open("rb") as lines, _opened(contents[0]) as good, _opened(contents[1]) as bad:
            for line in lines:
                row = msgspec.json.decode(line, type=BatchResult)
                is_failed = row.response is None or row.response.status_code != OK
                num_expired += row.error is not None and row.error.code == LineExpired.code
                counts[is_failed] += 1
                (bad if is_failed else good).write(line)
        made: dict[bool, str] = {}
        for kind, name in ((False, "output"), (True, "error")):
            if counts[kind]:
                filename = f"{self._batch.id}_{name}.jsonl"
                self._shelf.new_file(ids[kind], filename, "batch_output", self._batch.owner)
                made[kind] = ids[kind]
            else:
                self._shelf.content(ids[kind]).unlink()
        self._batch = msgspec.structs.replace(
            self._batch, output_file_id=made.get(False), error_file_id=made.get(True)
        )
        return RequestCounts(sum(counts.values()), counts[False], counts[True]), num_expired

    def _end_failed(self) -> None:
        counts = self._batch.request_counts
        if self._shelf.results(self._batch.id).exists():
            made, _ = self._make_files()
            counts = RequestCounts(max(counts.total, made.total), made.completed, made.failed)
        self._end("failed", counts)

    def _end(self, status: str, counts: RequestCounts) -> None:
        changes = {f"{status}_at": int(time.time())}
        mark = self._shelf.cancel_mark(self._batch.id)
        if status == "cancelled":
            changes["cancelling_at"] = int(mark.stat().st_mtime)
        self._set(status=status, request_counts=counts, **changes)
        self._shelf.results(self._batch.id).unlink(missing_ok=True)
        mark.unlink(missing_ok=True)

    def _counted(self) -> tuple[int, int]:
        tally = None if self._journal is None else self._journal.tally
        return (0, 0) if tally is None else (tally.lines - tally.failed, tally.failed)

    def _set(self, **changes: Any) -> None:
        self._batch = msgspec.structs.replace(self._batch, **changes)
        self._shelf.batches.put(self._batch.id, self._batch)


def _opened(path: Path) -> Any:
    path.touch(mode=0o600)
    return path.open("wb")
