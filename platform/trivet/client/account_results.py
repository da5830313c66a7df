"""What `/platform/v1` answers about users, keys, sessions, usage and the audit log, as typed values."""

from __future__ import annotations

from datetime import date, datetime

import msgspec


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who can log in; `role` is admin, operator, user or viewer."""

    name: str
    role: str = ""
    is_disabled: bool = False
    created_at: datetime | None = None
    last_login_at: datetime | None = None


class Myself(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what they may."""

    name: str = ""
    user: str | None = None
    role: str | None = None
    rights: tuple[str, ...] = ()
    csrf_token: str | None = None


class LoginSession(msgspec.Struct, frozen=True, kw_only=True):
    """A login of a user."""

    id: str
    user: str = ""
    created_at: datetime | None = None
    last_seen_at: datetime | None = None
    expires_at: datetime | None = None
    address: str = ""
    user_agent: str = ""
    is_current: bool = False


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key by its prefix; `key` is the whole of it, in the answer of `create` only.

    `notices`, in the answers of `create` and `update`, are what may not have been meant.
    """

    id: int
    name: str = ""
    prefix: str = ""
    user: str | None = None  # None: the site's own
    scopes: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None  # None: all
    priority: int = 0
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    key: str | None = None
    notices: tuple[str, ...] = ()


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One act; `before` and `after` are what it changed."""

    id: int
    at: datetime
    actor: str = ""
    action: str = ""
    target: str = ""
    outcome: str = ""
    address: str = ""
    request_id: str = ""
    before: object = None
    after: object = None


class AuditVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of the whole log; note `anchor` elsewhere and give it to a later `verify`."""

    is_whole: bool
    fault: str | None = None
    entries: int = 0
    anchor: str = ""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a day (UTC); `cost` is None where no price is set."""

    day: date
    user: str | None = None
    key_id: int | None = None
    key: str | None = None
    model: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by day, key, user and model.

    `cost` is the sum of those that have one; models without a price, which it leaves out, are named.
    """

    data: tuple[UsageRow, ...] = ()
    currency: str = ""
    cost: float | None = None
    unpriced_models: tuple[str, ...] = ()
