"""What /platform/v1 says of accounts, and reads for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import msgspec

from trivet_registry.account_tables import ApiKey, AuditEntry, LoginSession, User


class UserObject(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who can log in."""

    name: str
    role: str
    is_disabled: bool
    created_at: datetime
    last_login_at: datetime | None


class UserRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new user."""

    name: str
    password: str
    role: str = "user"


class UserChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to change; a change of any of them ends the user's sessions."""

    role: str | None = None
    is_disabled: bool | None = None
    password: str | None = None


class PasswordRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One's own new password; other sessions end."""

    current: str
    password: str


class LoginRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Name and password."""

    name: str
    password: str


class SelfObject(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks. `csrf_token` goes into the header X-CSRF-Token of what changes something, for a cookie."""

    name: str
    user: str | None
    role: str | None
    rights: list[str]
    csrf_token: str | None = None


class SessionObject(msgspec.Struct, frozen=True, kw_only=True):
    """A login; `id` names it here and opens nothing."""

    id: str
    user: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    address: str
    user_agent: str
    is_current: bool


class KeyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new key. `user`: whose (admins only; null is the site's own)."""

    name: str
    scopes: tuple[str, ...] = ("infer",)
    models: list[str] | None = None
    priority: int = 0
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    expires_at: datetime | None = None
    user: str | msgspec.UnsetType | None = msgspec.UNSET


class KeyChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to change; null takes a limit back."""

    name: str | None = None
    scopes: tuple[str, ...] | None = None
    models: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    priority: int | None = None
    max_concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    requests_per_minute: int | msgspec.UnsetType | None = msgspec.UNSET
    expires_at: datetime | msgspec.UnsetType | None = msgspec.UNSET


class KeyObject(msgspec.Struct, frozen=True, kw_only=True):
    """A key by its prefix. `key` is the whole of it, in the answer that makes it and never again.

    `notices`, in the answers that make and change it, are what may not have been meant.
    """

    id: int
    name: str
    prefix: str
    user: str | None
    scopes: list[str]
    models: list[str] | None
    priority: int
    max_concurrency: int | None
    requests_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    key: str | None = None
    notices: list[str] = []


class AuditObject(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit log."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    outcome: str
    address: str
    request_id: str
    before: Any
    after: Any


class VerdictObject(msgspec.Struct, frozen=True, kw_only=True):
    """Of the whole chain; `anchor` is to be noted elsewhere and given back later."""

    is_whole: bool
    fault: str | None
    entries: int
    anchor: str


class UsageObject(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a day (UTC); `cost` null: no price is set for the model."""

    day: date
    user: str | None
    key_id: int | None
    key: str | None
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: float | None


class UsageListing(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by day, key, user and model.

    `cost` is the sum of those that have one, null where none has; `unpriced_models` are those that it leaves
    out, because no price is set for them.
    """

    data: list[UsageObject]
    currency: str
    cost: float | None
    unpriced_models: list[str]


def user_object(row: User) -> UserObject:
    """As clients get it."""
    return UserObject(
        name=row.name,
        role=row.role,
        is_disabled=row.disabled_at is not None,
        created_at=row.created_at,
        last_login_at=row.last_login_at,
    )


def session_object(row: LoginSession, current: str | None) -> SessionObject:
    """`current`: hash of the session that asks."""
    return SessionObject(
        id=row.hash,
        user=row.user.name,
        created_at=row.created_at,
        last_seen_at=row.last_seen_at,
        expires_at=row.expires_at,
        address=row.address,
        user_agent=row.user_agent,
        is_current=row.hash == current,
    )


def key_object(row: ApiKey, key: str | None = None, notices: Sequence[str] = ()) -> KeyObject:
    """`key`: only right after it was made."""
    return KeyObject(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        user=None if row.user is None else row.user.name,
        scopes=row.scopes,
        models=row.models,
        priority=row.priority,
        max_concurrency=row.max_concurrency,
        requests_per_minute=row.requests_per_minute,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        key=key,
        notices=list(notices),
    )


_KEY_FACTS = (
    *("name", "prefix", "user", "scopes", "models", "priority", "max_concurrency"),
    *("requests_per_minute", "expires_at", "revoked_at"),
)


def key_facts(row: ApiKey) -> dict[str, object]:
    """What the audit log keeps of a key."""
    shown = key_object(row)
    return {name: getattr(shown, name) for name in _KEY_FACTS}


def audit_object(row: AuditEntry) -> AuditObject:
    """With what was kept as text read again."""
    return AuditObject(
        id=row.id,
        at=row.at,
        actor=row.actor,
        action=row.action,
        target=row.target,
        outcome=row.outcome,
        address=row.address,
        request_id=row.request_id,
        before=_read(row.before),
        after=_read(row.after),
    )


def _read(text: str | None) -> Any:
    """What somebody has spoilt is shown as it stands."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
