"""How often a password may be guessed, counted in the database: for all web processes, over restarts.

An attempt is counted before its password is looked at, so guesses sent at the same time count as well. Five a
minute for a name from an address; more for the name from everywhere, so that a stranger cannot lock
its owner out with a handful of guesses, and for an address over all names.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from trivet_registry.account_tables import LoginAttempts
from trivet_registry.users_store import hash_of, normal_name

WINDOW = timedelta(minutes=1)
PER_PAIR, PER_ADDRESS, PER_NAME = 5, 20, 60
FIRST_BLOCK = timedelta(seconds=30)
LONGEST_BLOCK = timedelta(minutes=15)
FORGOTTEN = timedelta(hours=1)


def begin_attempt(session: Session, name: str, address: str, now: datetime) -> float:
    """Count one. Returns: seconds to wait; 0 where the password may be looked at now."""
    session.execute(delete(LoginAttempts).where(LoginAttempts.since < now - FORGOTTEN))
    waits = [_count(session, bucket, limit, now) for bucket, limit in _buckets(name, address)]
    return max(waits)


def forget_attempts(session: Session, name: str, address: str) -> None:
    """The login was good."""
    pair, _ = _buckets(name, address)[0]
    session.execute(delete(LoginAttempts).where(LoginAttempts.bucket == pair))


def _buckets(name: str, address: str) -> list[tuple[str, int]]:
    who = normal_name(name)
    return [
        (hash_of(f"pair\0{who}\0{address}"), PER_PAIR),
        (hash_of(f"address\0{address}"), PER_ADDRESS),
        (hash_of(f"name\0{who}"), PER_NAME),
    ]


def _count(session: Session, bucket: str, limit: int, now: datetime) -> float:
    row = _locked(session, bucket, now)
    if row.blocked_until is not None and now < row.blocked_until:
        return (row.blocked_until - now).total_seconds()
    if now - row.since > WINDOW:
        row.failures, row.since = 0, now
    row.failures += 1
    if row.failures <= limit:
        return 0.0
    row.strikes += 1
    row.failures, row.since = 0, now
    block = min(FIRST_BLOCK * 2 ** min(row.strikes - 1, 8), LONGEST_BLOCK)
    row.blocked_until = now + block
    wait_s: float = block.total_seconds()
    return wait_s


def _locked(session: Session, bucket: str, now: datetime) -> LoginAttempts:
    """The bucket's row, which no other transaction counts in meanwhile."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    session.execute(
        insert(LoginAttempts)
        .values(bucket=bucket, failures=0, strikes=0, since=now)
        .on_conflict_do_nothing(index_elements=["bucket"])
    )
    query = select(LoginAttempts).where(LoginAttempts.bucket == bucket).with_for_update()
    return session.scalars(query.execution_options(populate_existing=True)).one()
