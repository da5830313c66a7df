"""The newest requests of all web processes, where there are several, and a way to end one of another.

As engine_totals does: each process keeps what it has in a file of its own, and whoever is asked reads those
of all. The end of a request is asked for by a file, which its process finds within a second.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trivet_supervisor.launchers.process_table import start_time
from trivet_web.answers.request_log import LENGTH, RUNNING, Entry

logger = logging.getLogger(__name__)
REQUESTS_FOLDER = "web-requests"  # in the run directory
ORPHAN_S = 30.0  # beyond it nobody takes the end of a request up
REMEMBERED_S = 3600.0  # after the end of a process, what it has served
_SUFFIX, _END_SUFFIX = ".requests", ".end"


class RequestObject(msgspec.Struct, frozen=True):
    """One request; times are seconds, null where it is not so far.

    `prepare_s` is template and tokenizer, `queue_s` the engine's queue, `prefill_s` until the first token,
    `decode_s` from there on, `total_s` from its arrival until now or its end.
    """

    id: str
    at: datetime
    model: str
    route: str
    who: str
    instance: str
    is_streamed: bool
    status: str  # running, done, failed or cancelled
    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prepare_s: float | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    total_s: float
    adapter: str = ""  # of that model; empty: none


def request_object(one: Entry, now_s: float) -> RequestObject:
    """`now_s` is CLOCK_MONOTONIC."""
    course, end_s = one.course, one.ended_s or now_s
    prefill_s = None
    if course.first_s is not None and course.sent_s is not None:
        prefill_s = max(0.0, course.first_s - course.sent_s - (course.queue_s or 0.0))
    return RequestObject(
        id=one.id,
        at=datetime.fromtimestamp(one.at_s, UTC),
        model=one.model,
        route=one.route,
        who=one.who,
        instance=course.instance,
        is_streamed=one.is_streamed,
        status=one.status,
        reason=one.reason,
        prompt_tokens=one.prompt_tokens,
        cached_tokens=one.cached_tokens,
        completion_tokens=one.completion_tokens,
        prepare_s=None if course.sent_s is None else course.sent_s - one.begun_s,
        queue_s=course.queue_s,
        prefill_s=prefill_s,
        decode_s=None if course.first_s is None else end_s - course.first_s,
        total_s=end_s - one.begun_s,
        adapter=one.adapter,
    )


def newest_first(found: Iterable[RequestObject]) -> list[RequestObject]:
    """Running ones first, at most as many as one process keeps."""
    return sorted(found, key=lambda one: (one.status == RUNNING, one.at), reverse=True)[:LENGTH]


class SharedRequests:
    """Of one web process. `folder` None: it is the only one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        pid = os.getpid()
        name = f"{pid}-{start_time(pid)}-{secrets.token_hex(4)}{_SUFFIX}"  # a pid may be reused
        self._file = folder / name if folder else None
        self._decoder = msgspec.msgpack.Decoder(list[RequestObject])
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)

    def publish(self, entries: Iterable[Entry]) -> None:
        """What the others tell of this process until the next time."""
        if self._file is None:
            return
        now_s = time.monotonic()
        data = msgspec.msgpack.encode([request_object(one, now_s) for one in entries])
        self._write(self._file, data)

    def others(self) -> Iterator[RequestObject]:
        """As they were a second ago. What a process that has ended was at is left out."""
        for file in self._files(_SUFFIX):
            if file == self._file:
                continue
            pid, born, *_ = file.name.split("-")
            lives = born == str(start_time(int(pid)))
            try:
                if not lives and time.time() - file.stat().st_mtime > REMEMBERED_S:
                    file.unlink(missing_ok=True)
                    continue
                found = self._decoder.decode(file.read_bytes())
            except (OSError, msgspec.MsgspecError) as error:  # it was just removed; it is of another release
                logger.debug("file=%s is passed over: %s", file, error)
                continue
            yield from (one for one in found if lives or one.status != RUNNING)

    def ask_for_end(self, request_id: str, reason: str) -> None:
        """Of a request that another process has."""
        if self._folder is not None:
            name = secrets.token_hex(
                8
            )  # not of the id: clients choose it, and two may ask for its end at once
            self._write(self._folder / f"{name}{_END_SUFFIX}", msgspec.msgpack.encode((request_id, reason)))

    def wanted_ends(self, running: Iterable[str]) -> dict[str, str]:
        """Reason by id of those that run here and shall end; each is told once."""
        own, found = set(running), dict[str, str]()
        for file in self._files(_END_SUFFIX):
            try:
                request_id, reason = msgspec.msgpack.decode(file.read_bytes(), type=tuple[str, str])
                if request_id in own:
                    found[request_id] = reason
                if request_id in own or time.time() - file.stat().st_mtime > ORPHAN_S:
                    file.unlink(missing_ok=True)
            except (OSError, msgspec.MsgspecError):
                continue
        return found

    def _files(self, suffix: str) -> list[Path]:
        return [] if self._folder is None else sorted(self._folder.glob(f"*{suffix}"))

    def _write(self, file: Path, data: bytes) -> None:
        scratch = file.with_suffix(".new")
        try:
            scratch.write_bytes(data)
            scratch.replace(file)
        except OSError as error:  # a full disk; the requests themselves go on
            logger.warning("file=%s is not written: %s", file, error)
