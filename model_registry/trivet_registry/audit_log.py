"""The audit log: appended in the transaction of the act itself, chained by hashes, verified on demand.

An entry's hash covers its fields and the hash before it, so an edited or removed row breaks the chain at its
place, and `audit_head` shows a cut tail. Whoever may write the whole database could hash everything anew: an
anchor (the head's id and hash, noted elsewhere) finds that, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.orm import Session

from trivet.errors import RequestError, Unavailable
from trivet_registry.account_tables import AuditEntry, AuditHead
from trivet_registry.tables import utc_now

HEAD = 1  # id of the one row of audit_head
ROOT_HASH = "0" * 64
DONE, REFUSED, FAILED = "done", "refused", "failed"
PAGE = 1000
HEADLESS = (
    "the audit log has lost its head (the row of audit_head), so that nothing can be added to it; put the "
    "registry back from a backup"
)
GARBLED = (ValueError, TypeError, DataError)  # of a row in which a value is none of its column's
Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody did; `before` and `after` hold no secret."""

    actor: str
    action: str
    target: str = ""
    before: Fields | None = None
    after: Fields | None = None
    outcome: str = DONE
    address: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fault` None: the chain is whole up to `last_id`, whose hash is `hash`."""

    last_id: int
    hash: str
    fault: str | None = None


def append(session: Session, act: Act) -> int:
    """Add an entry. Call it last in a transaction: writers of other acts queue from here to the commit.

    Returns: its id.
    """
    session.flush()
    head = session.execute(
        select(AuditHead.last_id, AuditHead.hash).where(AuditHead.id == HEAD).with_for_update()
    ).one_or_none()
    if head is None:
        raise Unavailable(HEADLESS)
    entry_id: int = head.last_id + 1
    values = {
        "id": entry_id,
        "at": utc_now(),
        "actor": act.actor[:160],
        "action": act.action[:64],
        "target": act.target[:1000],
        "outcome": act.outcome,
        "address": act.address[:64],
        "request_id": act.request_id[:64],
        "before": _text(act.before),
        "after": _text(act.after),
    }
    values["hash"] = _chained(head.hash, values)
    session.execute(insert(AuditEntry).values(values))
    session.execute(
        update(AuditHead)
        .where(AuditHead.id == HEAD)
        .values(
            last_id=entry_id,
            hash=values["hash"],
            accounts_version=AuditHead.accounts_version + (1 if act.outcome == DONE else 0),
        )
    )
    return entry_id


def accounts_version(session: Session) -> int:
    """It grows with every act that was done: whoever remembers something about accounts compares it."""
    version: int = session.execute(
        select(AuditHead.accounts_version).where(AuditHead.id == HEAD)
    ).scalar_one()
    return version


def list_entries(
    session: Session, limit: int = 100, before_id: int | None = None, action: str | None = None
) -> Sequence[AuditEntry]:
    """The newest first; `before_id` goes on from a list that was cut.

    Raises: Unavailable where one of them cannot be read.
    """
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    if before_id is not None:
        query = query.where(AuditEntry.id < before_id)
    if action is not None:
        query = query.where(AuditEntry.action == action)
    try:
        return session.scalars(query).all()
    except GARBLED as error:
        raise Unavailable(
            f"an entry of the audit log cannot be read ({error}); `trivet audit verify` names it"
        ) from error


def verify(session: Session, anchor: str | None = None) -> Verdict:
    """Read the whole chain; the first row that is not what was written, or is gone, is named.

    Args:
        anchor: "ID:HASH" of an earlier verdict.

    Raises: RequestError for an anchor that is none.
    """
    known_id, known_hash = _anchor(anchor)
    last_id, last_hash = 0, ROOT_HASH
    for entry_id, entry in _all(session):
        if entry_id != last_id + 1:
            return Verdict(last_id, last_hash, f"entry {last_id + 1} is missing: the next one is {entry_id}")
        if entry is None:
            return Verdict(last_id, last_hash, f"entry {entry_id} is not what was written: it cannot be read")
        values = {name: getattr(entry, name) for name in _HASHED}
        if _chained(last_hash, values) != entry.hash:
            return Verdict(last_id, last_hash, f"entry {entry_id} is not what was written, or one before it")
        last_id, last_hash = entry_id, entry.hash
        if last_id == known_id and last_hash != known_hash:
            return Verdict(last_id, last_hash, f"entry {last_id} is not the one of the anchor")
    query = select(AuditHead.last_id, AuditHead.hash).where(AuditHead.id == HEAD)
    head = session.execute(query).one_or_none()
    if head is None:
        return Verdict(last_id, last_hash, HEADLESS)
    # SQLite keeps text in a column of numbers, too.
    newest = max(head.last_id, known_id) if isinstance(head.last_id, int) else known_id
    if newest > last_id:
        return Verdict(last_id, last_hash, f"entries {last_id + 1} to {newest} are missing")
    if (head.last_id, head.hash) != (last_id, last_hash):
        return Verdict(last_id, last_hash, f"entry {last_id} is not the one that the head names")
    return Verdict(last_id, last_hash)


_HASHED = (
    *("id", "at", "actor", "action", "target", "outcome", "address", "request_id"),
    *("before", "after"),
)


def _all(session: Session) -> Iterator[tuple[int, AuditEntry | None]]:
    """By id, whatever ids there are; None: the row cannot be read."""
    page = _page(session, None)
    while page:
        yield from page
        session.expunge_all()
        page = _page(session, page[-1][0])


def _page(session: Session, after_id: int | None) -> list[tuple[int, AuditEntry | None]]:
    query = select(AuditEntry).order_by(AuditEntry.id).limit(PAGE)
    if after_id is not None:
        query = query.where(AuditEntry.id > after_id)
    try:
        return [(entry.id, entry) for entry in session.scalars(query)]
    except (*GARBLED, OperationalError):  # the last: bytes that are no text, of SQLite
        ids = session.scalars(query.with_only_columns(AuditEntry.id)).all()
        return [(entry_id, _read(session, entry_id)) for entry_id in ids]


def _read(session: Session, entry_id: int) -> AuditEntry | None:
    try:
        return session.get(AuditEntry, entry_id)
    except (*GARBLED, OperationalError):
        return None


def _chained(previous: str, values: Mapping[str, object]) -> str:
    fields = [_plain(values[name]) for name in _HASHED]
    return hashlib.sha256(previous.encode() + msgspec.json.encode(fields)).hexdigest()


def _plain(value: object) -> object:
    """A time in microseconds, as both databases keep it."""
    return value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value


def _text(fields: Fields | None) -> str | None:
    return None if fields is None else msgspec.json.encode(fields, order="sorted").decode()


def _anchor(text: str | None) -> tuple[int, str]:
    if text is None:
        return 0, ROOT_HASH
    number, _, known_hash = text.partition(":")
    if not number.isdecimal() or len(number) > 12 or len(known_hash) != len(ROOT_HASH):
        raise RequestError(f"anchor is {text!r:.100}; it is ID:HASH, as `trivet audit verify` prints it")
    return int(number), known_hash
