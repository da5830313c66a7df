"""GET /platform/v1/logs/INSTANCE and /site-logs/NAME: a log as text, its end or as it is written.

Of an engine, `attempt` is a number, or "first-crash". Who follows goes on with the next attempt when one
starts, and with the newest instance of the deployment when this one has stopped, as an update replaces it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from flask import Blueprint, Response, request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from trivet.engine.log_bound import EARLIER
from trivet.errors import NotFound, Unavailable
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.instances_store import get_instance, list_instances
from trivet_registry.tables import Instance
from trivet_supervisor.engine_logs import first_crash_file
from trivet_web.accounts.going_on import may_go_on
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.inference import client_fd
from trivet_web.api.management.observations import whole_number
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("logs", __name__, url_prefix="/platform/v1")
MAX_TAIL = 100_000
MAX_TAIL_BYTES = 16 << 20  # a log without line breaks must not fill the memory of a web process
TAIL_BLOCK = 64 << 10
POLL_S = 0.3
LOOKS_A_QUERY = 3  # the registry is asked for another attempt after so many looks in vain
FIRST_CRASH = "first-crash"
SITE_LOGS = ("supervisor", "web")
SENT_OUT = b"\n==== the login or key has ended, or may not read this any more ====\n"


@blueprint.get("/logs/<instance_id>")
@requires(Right.READ)
@documented(media_type="text/plain", query={"tail": int, "follow": int, "attempt": str})
def logs(instance_id: str) -> Response:
    """Raises: NotFound for an instance, or an attempt of it, that left no log."""
    process = web_process()
    with process.database.reading() as session:
        row = get_instance(session, instance_id)
        file = _file(row)
    return _answer(process, file, NextFile(process, instance_id), Right.READ)


@blueprint.get("/site-logs/<name>")
@requires(Right.OPERATE)
@documented(media_type="text/plain", query={"tail": int, "follow": int})
def site_logs(name: str) -> Response:
    """What the site's own processes write: users' names and addresses may be in it. Raises: NotFound."""
    if name not in SITE_LOGS:
        raise NotFound(f"there is no log {name[:40]!r} of the site; there are {' and '.join(SITE_LOGS)}")
    process = web_process()
    return _answer(process, process.settings.paths.logs / f"{name}.log", lambda file: None, Right.OPERATE)


def _answer(
    process: WebProcess, file: Path, next_file: Callable[[Path], Path | None], right: Right
) -> Response:
    """Raises: RequestError."""
    tail = whole_number("tail", 200, 0, MAX_TAIL)
    if request.args.get("follow") != "1":
        return Response(_tail(file, tail), mimetype="text/plain")
    follower = Follower(process, file, tail, client_fd(), next_file, may_go_on(right))
    response = Response(follower, mimetype="text/plain")
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _file(row: Instance) -> Path:
    """Raises: NotFound; RequestError for an attempt that is none."""
    if row.log_file is None:
        raise NotFound(
            f"instance {row.id} has no log: it is {row.state} and was never started", param="instance"
        )
    newest = Path(row.log_file)
    if request.args.get("attempt") == FIRST_CRASH:
        file = first_crash_file(newest)
        if not file.exists():
            raise NotFound(f"instance {row.id} has not crashed", param="attempt")
        return file
    attempt = whole_number("attempt", row.attempt, 0, 10**9)
    if attempt == row.attempt:
        if row.instance_state not in LIVE_STATES and not newest.exists():
            raise NotFound(
                f"the log of instance {row.id} was removed: it is {row.state}, and of those that have ended "
                "the newest logs are kept",
                param="instance",
            )
        return newest
    file = newest.with_name(f"{row.id}-{attempt}.log")
    if not file.exists():
        raise NotFound(
            f"instance {row.id} has no log of attempt {attempt}; it has started {row.attempt} times and "
            "the first and the newest logs are kept",
            param="attempt",
        )
    return file


class NextFile:
    """The log that follows one that has ended; None: there is none yet."""

    def __init__(self, process: WebProcess, instance_id: str) -> None:
        self._process = process
        self._instance_id = instance_id

    def __call__(self, file: Path) -> Path | None:
        try:
            with self._process.database.reading() as session:
                row = get_instance(session, self._instance_id)
                if row.log_file is not None and Path(row.log_file) != file:
                    return Path(row.log_file)
                if row.instance_state is InstanceState.STOPPED:
                    return self._of_successor(list_instances(session, row.deployment.name, LIVE_STATES))
        except (NotFound, DBAPIError, PoolTimeout):
            return None
        return None

    def _of_successor(self, living: Sequence[Instance]) -> Path | None:
        for instance in reversed(living):
            if instance.log_file is not None:
                self._instance_id = instance.id
                return Path(instance.log_file)
        return None


def _tail(file: Path, count: int) -> bytes:
    """Empty before the engine has written anything.

    Raises: Unavailable where the file is there and cannot be read, or its folder is none.
    """
    try:
        with file.open("rb") as log:
            lines = last_lines(log, count)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Unavailable(f"log {file} cannot be read: {error.strerror}") from error
    missing = count - lines.count(b"\n")
    earlier = file.with_name(file.name + EARLIER)
    if missing > 0 and earlier.exists():
        with earlier.open("rb") as log:
            lines = last_lines(log, missing) + lines
    return lines


def last_lines(log: BinaryIO, count: int) -> bytes:
    """The last `count` lines, of at most `MAX_TAIL_BYTES`, read backwards by blocks: logs may be large.

    Leaves `log` where its end was, so that who reads on misses nothing.
    """
    end = start = log.seek(0, os.SEEK_END)
    blocks: list[bytes] = []
    num_lines = 0
    while start > 0 and num_lines <= count and end - start < MAX_TAIL_BYTES:
        size = min(TAIL_BLOCK, start)
        start -= size
        log.seek(start)
        blocks.append(log.read(size))
        num_lines += blocks[-1].count(b"\n")
    log.seek(end)
    # Not splitlines(): it takes each state of a progress bar (carriage returns) for a line.
    *whole, rest = b"".join(reversed(blocks)).split(b"\n")
    lines = [line + b"\n" for line in whole] + ([rest] if rest else [])
    return b"".join(lines[-count:]) if count else b""


class Follower:
    """Yields the end of the file, then what is appended, until the client goes or the server drains.

    `next_file` gives the file to go on with once nothing more comes, if there is one; `may_go_on` says
    whether the login or key that asked may still read it: else the answer ends, with a line about it.
    """

    def __init__(
        self,
        process: WebProcess,
        file: Path,
        tail: int,
        fd: int | None,
        next_file: Callable[[Path], Path | None],
        may_go_on: Callable[[], bool],
    ) -> None:
        self._process = process
        self._file = file
        self._tail = tail
        self._fd = fd
        self._next_file = next_file
        self._may_go_on = may_go_on
        self._was_sent_out = False
        self._is_over = threading.Event()
        self._give_slot_back = process.slots.take()
        if fd is not None:
            process.hang_up.watch(fd, self._is_over.set)

    def __iter__(self) -> Iterator[bytes]:
        tail, file = self._tail, self._file
        while (following := (yield from self._of_one(file, tail))) is not None:
            file, tail = following, 0
            yield f"\n==== {file.name} ====\n".encode()
        if self._was_sent_out:
            yield SENT_OUT

    def _of_one(self, file: Path, tail: int) -> Generator[bytes, None, Path | None]:
        """Returns the file that follows."""
        num_looks = 0
        while not file.exists():
            if self._has_ended():
                return None
            num_looks += 1
            if num_looks % LOOKS_A_QUERY == 0 and (following := self._next_file(file)) is not None:
                return following
        with file.open("rb") as log:
            if tail:
                yield last_lines(log, tail)
            num_quiet = 0
            while not self._has_ended():
                if os.fstat(log.fileno()).st_size < log.tell():
                    log.seek(0)  # the engine has cut it
                if new := log.read(TAIL_BLOCK):
                    num_quiet = 0
                    yield new
                    continue
                num_quiet += 1
                if num_quiet % LOOKS_A_QUERY == 0 and (following := self._next_file(file)) is not None:
                    yield log.read()
                    return following
        return None

    def close(self) -> None:
        if self._fd is not None:
            self._process.hang_up.forget(self._fd)
        self._give_slot_back()

    def _has_ended(self) -> bool:
        """After at most `POLL_S`."""
        self._was_sent_out = not self._may_go_on()
        return self._was_sent_out or self._is_over.wait(POLL_S) or self._process.is_draining
