"""Pulls: what comes from a source, how far it is, and whether the process that brings it lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from trivet.errors import NotFound
from trivet_registry.events_store import record_event
from trivet_registry.tables import Pull, utc_now

RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"
LOST = "the process that pulled it has ended; pull it again: what has come is gone on with"


@contextlib.contextmanager
def held(folder: Path, pull_id: str) -> Iterator[None]:
    """As long as this lasts the pull lives: a lock that ends with its process, and the file with it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"pull-{pull_id}"
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_held(folder: Path, pull_id: str) -> bool:
    """Whether a process holds it, on this host."""
    try:
        handle = os.open(folder / f"pull-{pull_id}", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def new_pull_id() -> str:
    """For `held`, and then `create_pull`."""
    return secrets.token_hex(4)


def create_pull(session: Session, pull_id: str, source: str, name: str | None) -> Pull:
    """`running`; hold it before, or whoever looks in between says that it is lost."""
    row = Pull(id=pull_id, source=source, name=name)
    session.add(row)
    session.flush()
    record_event(session, "model", f"pull {source}")
    return row


def get_pull(session: Session, pull_id: str) -> Pull:
    """Raises: NotFound."""
    row = session.get(Pull, pull_id)
    if row is None:
        raise NotFound(f"pull {pull_id!r} does not exist", param="pull")
    return row


def list_pulls(session: Session, limit: int = 50) -> Sequence[Pull]:
    """The newest first."""
    return session.scalars(select(Pull).order_by(Pull.created_at.desc(), Pull.id).limit(limit)).all()


def report(session: Session, pull_id: str, done_bytes: int, total_bytes: int) -> bool:
    """How far it is. Returns whether it shall go on."""
    row = session.get(Pull, pull_id)
    if row is None or row.is_cancelled:
        return False
    row.done_bytes, row.total_bytes = done_bytes, total_bytes
    return True


def end_pull(
    session: Session, pull_id: str, state: str, message: str = "", version: str | None = None
) -> None:
    """Once; a second end changes nothing. A message may be a stranger's server's."""
    message = message.replace("\0", "")[:2000]  # PostgreSQL takes no zero character
    values = {"state": state, "message": message, "version": version, "ended_at": utc_now()}
    ours = update(Pull).where(Pull.id == pull_id, Pull.state == RUNNING)
    session.execute(ours.values(**values).execution_options(synchronize_session=False))
    record_event(
        session, "model", f"pull {pull_id} {state}{': ' if message else ''}{message or version or ''}"
    )


def has_lost(session: Session, folder: Path) -> bool:
    """Whether `end_lost` has anything to do."""
    return bool(_lost(session, folder))


def end_lost(session: Session, folder: Path) -> None:
    """Say of those whose process has ended that they did."""
    for row in _lost(session, folder):
        end_pull(session, row.id, FAILED, LOST)


def _lost(session: Session, folder: Path) -> list[Pull]:
    running = session.scalars(select(Pull).where(Pull.state == RUNNING))
    return [row for row in running if not is_held(folder, row.id)]
