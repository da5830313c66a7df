"""How often a password may be guessed, counted in the database: for all web processes, over restarts.

An attempt is counted before its password is looked at, so guesses sent at the same time count as well, and
taken back when it was good. Five wrong ones a minute for a name from a network; more for a network over all
names, and for a name from everywhere. The first of these three that is blocked ends it: who is blocked adds
to no other count, so that no one network reaches the limit of a name. Where a name has logged in from before,
that limit does not hold: guesses from ever so many networks do not lock its owner out there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network

from sqlalchemy import case, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from trivet_registry.account_tables import LoginAttempts, LoginPlace
from trivet_registry.users_store import hash_of, normal_name

WINDOW = timedelta(minutes=1)
PER_PAIR, PER_ADDRESS, PER_NAME = 5, 20, 60
FIRST_BLOCK = timedelta(seconds=30)
LONGEST_BLOCK = timedelta(minutes=15)
FORGOTTEN = timedelta(hours=1)  # also what a clock counted that was ahead: it would lock out for as long
PLACE_FORGOTTEN = timedelta(days=30)


def block_s(session: Session, name: str, address: str, now: datetime) -> float:
    """Seconds to wait, as it is now; it writes nothing."""
    hashes = [bucket for bucket, _ in _buckets(session, name, address)]
    ends = session.scalars(
        select(LoginAttempts.blocked_until).where(
            LoginAttempts.bucket.in_(hashes),
            LoginAttempts.blocked_until > now,
            LoginAttempts.since < now + FORGOTTEN,
        )
    ).all()
    return max(((end - now).total_seconds() for end in ends if end is not None), default=0.0)


def begin_attempt(session: Session, name: str, address: str, now: datetime) -> float:
    """Count one. Returns: seconds to wait; 0 where the password may be looked at now."""
    if wait_s := block_s(session, name, address, now):
        return wait_s
    old, ahead = LoginAttempts.since < now - FORGOTTEN, LoginAttempts.since >= now + FORGOTTEN
    session.execute(delete(LoginAttempts).where(old | ahead))
    waits = (_count(session, bucket, limit, now) for bucket, limit in _buckets(session, name, address))
    return next((wait_s for wait_s in waits if wait_s > 0), 0.0)


def take_back(session: Session, name: str, address: str) -> None:
    """The password was not looked at, or it was good."""
    hashes = [bucket for bucket, _ in _buckets(session, name, address)]
    one_less = case((LoginAttempts.failures > 0, LoginAttempts.failures - 1), else_=0)
    session.execute(update(LoginAttempts).where(LoginAttempts.bucket.in_(hashes)).values(failures=one_less))


def end_good_attempt(session: Session, name: str, address: str, now: datetime) -> None:
    """The login was good: it is no failure, and its place is known from now on."""
    take_back(session, name, address)
    (pair, _), (network, _), *_ = _buckets(session, name, address)
    session.execute(delete(LoginAttempts).where(LoginAttempts.bucket == pair))
    session.execute(update(LoginAttempts).where(LoginAttempts.bucket == network).values(strikes=0))
    session.execute(delete(LoginPlace).where(LoginPlace.seen_at < now - PLACE_FORGOTTEN))
    session.merge(LoginPlace(place=_place(name, address), seen_at=now))


def _buckets(session: Session, name: str, address: str) -> Iterator[tuple[str, int]]:
    who, where = normal_name(name), _network(address)
    yield hash_of(f"pair\0{who}\0{where}"), PER_PAIR
    yield hash_of(f"address\0{where}"), PER_ADDRESS
    if session.get(LoginPlace, _place(name, address)) is None:
        yield hash_of(f"name\0{who}"), PER_NAME


def _place(name: str, address: str) -> str:
    return hash_of(f"place\0{normal_name(name)}\0{_network(address)}")


def _network(address: str) -> str:
    """One host has as many addresses of IPv6 as it likes, within a /64."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, 64), strict=False))


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
