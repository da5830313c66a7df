"""API keys. The key itself is made here, returned once, and kept as its hash."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import MAXYEAR, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from trivet.errors import NotFound, RequestError
from trivet_registry.account_tables import ApiKey, User
from trivet_registry.tables import utc_now
from trivet_registry.users_store import hash_of

MARK = "sk-tv-"  # as secrets that scanners of repositories and logs know
PREFIX_LENGTH = len(MARK) + 6
MAX_PRIORITY = 9


@dataclass(frozen=True, slots=True)
class KeySettings:
    """What a key may do and how much."""

    name: str
    scopes: Sequence[str] = ("infer",)
    models: Sequence[str] | None = None
    priority: int = 0
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    expires_at: datetime | None = None


def create_key(session: Session, user: User | None, settings: KeySettings) -> tuple[ApiKey, str]:
    """Returns: the row, and the key, which is known to nobody from then on.

    Raises: RequestError naming the field.
    """
    _check(settings)
    key = MARK + secrets.token_urlsafe(32)
    row = ApiKey(
        name=settings.name.strip(),
        prefix=key[:PREFIX_LENGTH],
        hash=hash_of(key),
        user_id=None if user is None else user.id,
        scopes=sorted(set(settings.scopes)),
        models=None if settings.models is None else sorted(set(settings.models)),
        priority=settings.priority,
        max_concurrency=settings.max_concurrency,
        requests_per_minute=settings.requests_per_minute,
        expires_at=settings.expires_at,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row, key


def settings_of_key(row: ApiKey) -> KeySettings:
    """As they are now."""
    return KeySettings(**{each.name: getattr(row, each.name) for each in fields(KeySettings)})


def change_key(row: ApiKey, settings: KeySettings) -> None:
    """Raises: RequestError naming the field."""
    has_new_expiry = settings.expires_at != row.expires_at
    _check(settings if has_new_expiry else replace(settings, expires_at=None))
    for each in fields(KeySettings):
        setattr(row, each.name, getattr(settings, each.name))


def find_key(session: Session, key_hash: str) -> ApiKey | None:
    """Also one that is revoked or has expired."""
    return session.scalars(select(ApiKey).where(ApiKey.hash == key_hash)).one_or_none()


def get_key(session: Session, key_id: int, user_id: int | None = None) -> ApiKey:
    """`user_id`: only if it is this user's. Raises: NotFound, the same for another's and for none."""
    row = session.get(ApiKey, key_id) if 0 < key_id < 1 << 31 else None
    if row is None or (user_id is not None and row.user_id != user_id):
        raise NotFound(f"key {key_id} does not exist; see `trivet keys list`", param="key_id")
    return row


def list_keys(session: Session, user_id: int | None = None) -> Sequence[ApiKey]:
    """The newest first, revoked ones included; `user_id` None: everybody's."""
    query = select(ApiKey).order_by(ApiKey.id.desc())
    return session.scalars(query if user_id is None else query.where(ApiKey.user_id == user_id)).all()


def revoke_key(session: Session, row: ApiKey) -> None:
    """For good. Idempotent."""
    row.revoked_at = row.revoked_at or utc_now()


def _check(settings: KeySettings) -> None:
    if not 1 <= len(settings.name.strip()) <= 128:
        raise RequestError(
            f"name has {len(settings.name.strip())} characters; it must have 1 to 128", param="name"
        )
    if not settings.name.isprintable():
        raise RequestError(
            f"name {settings.name!r} has control characters or marks of direction in it; leave them out",
            param="name",
        )
    if not settings.scopes or (settings.models is not None and not settings.models):
        empty = "models" if settings.scopes else "scopes"
        raise RequestError(f"{empty} is empty; a key that may do nothing is of no use", param=empty)
    if not 0 <= settings.priority <= MAX_PRIORITY:
        raise RequestError(
            f"priority is {settings.priority}; it must be 0 (the best) to {MAX_PRIORITY}", param="priority"
        )
    for name in ("max_concurrency", "requests_per_minute"):
        value = getattr(settings, name)
        if value is not None and not 1 <= value <= 1_000_000:
            raise RequestError(
                f"{name} is {value}; it must be 1 to 1000000, or left out for no limit", param=name
            )
    if settings.expires_at is not None and settings.expires_at.tzinfo is None:
        raise RequestError(
            f"expires_at is {settings.expires_at}, in no time zone; add one, as in 2030-01-31T00:00:00Z",
            param="expires_at",
        )
    if settings.expires_at is not None and settings.expires_at.year >= MAXYEAR:  # in UTC it may be no date
        raise RequestError(
            f"expires_at is {settings.expires_at}; leave it out for a key that does not end",
            param="expires_at",
        )
    if settings.expires_at is not None and settings.expires_at <= utc_now():
        raise RequestError(f"expires_at is {settings.expires_at}; it has passed", param="expires_at")
