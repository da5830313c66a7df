"""Tables of who may do what: users, sessions, keys, failed logins, the audit log, usage.

No secret is in them: passwords as argon2id, ids of sessions and keys as SHA-256 of 256 random bits, which
needs no slow hash. Usage and the audit log hold ids and names instead of references: they outlive both.
"""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum

from sqlalchemy import BigInteger, Date, ForeignKey, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from trivet_registry.tables import Base, JsonList, utc_now

# SQLite gives the id of a removed row again otherwise, and with it what is kept under that id.
ONCE = {"sqlite_autoincrement": True}


class Role(StrEnum):
    """What a user is; web/trivet_web/accounts/rights.py says what each may."""

    ADMIN = "admin"
    OPERATOR = "operator"
    USER = "user"
    VIEWER = "viewer"


class User(Base):
    """Somebody who can log in. `name` is in lower case."""

    __tablename__ = "users"
    __table_args__ = ONCE

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    password_hash: Mapped[str] = mapped_column(Text)  # argon2id, with its parameters
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    disabled_at: Mapped[datetime | None]
    last_login_at: Mapped[datetime | None]


class LoginSession(Base):
    """A login. Its id is known to its client alone."""

    __tablename__ = "sessions"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    last_seen_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]
    address: Mapped[str] = mapped_column(String(64))
    user_agent: Mapped[str] = mapped_column(String(200))
    user: Mapped[User] = relationship(lazy="joined", innerjoin=True)


class ApiKey(Base):
    """A key of a program. One without a user belongs to the site."""

    __tablename__ = "api_keys"
    __table_args__ = ONCE

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    prefix: Mapped[str] = mapped_column(String(16))  # enough to know it by
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    user_id: Mapped[int | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    scopes: Mapped[list[str]] = mapped_column(JsonList)
    models: Mapped[list[str] | None]  # deployments; None: all
    priority: Mapped[int] = mapped_column(default=0, server_default=text("0"))  # the best it may ask for
    max_concurrency: Mapped[int | None]  # requests at once
    requests_per_minute: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    user: Mapped[User | None] = relationship(lazy="joined")


class LoginAttempts(Base):
    """Failed logins of late, of one account or address; the bucket's name is a hash."""

    __tablename__ = "login_attempts"

    bucket: Mapped[str] = mapped_column(String(64), primary_key=True)
    failures: Mapped[int] = mapped_column(default=0)  # since `since`
    strikes: Mapped[int] = mapped_column(default=0)  # blocks in a row; each lasts twice as long
    since: Mapped[datetime] = mapped_column(default=utc_now)
    blocked_until: Mapped[datetime | None]


class LoginPlace(Base):
    """A name has logged in from a network of late; both are in the hash."""

    __tablename__ = "login_places"

    place: Mapped[str] = mapped_column(String(64), primary_key=True)
    seen_at: Mapped[datetime]


class AuditEntry(Base):
    """One act of administration. `id` counts without gaps, `hash` covers the row and the hash before it."""

    __tablename__ = "audit_log"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(160))  # "user alice", "key sk-tv-Ab12Cd of alice", ...
    action: Mapped[str] = mapped_column(String(64))  # "deployment.launch"
    target: Mapped[str] = mapped_column(Text)
    outcome: Mapped[str] = mapped_column(String(16))  # "done" | "refused" | "failed"
    address: Mapped[str] = mapped_column(String(64))
    request_id: Mapped[str] = mapped_column(String(64))
    before: Mapped[str | None] = mapped_column(Text)  # JSON as it was hashed
    after: Mapped[str | None] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(String(64))


class AuditHead(Base):
    """The one row that knows the newest entry: writers queue for it, and a cut tail shows.

    `accounts_version` grows with what was done, not with what was refused.
    """

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_id: Mapped[int]
    accounts_version: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    hash: Mapped[str] = mapped_column(String(64))


class Usage(Base):
    """Tokens of a day (UTC) by key, user and model; 0 stands for no key and no user."""

    __tablename__ = "usage"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    key_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    user_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    model: Mapped[str] = mapped_column(String(128), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger, default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)  # of the prompt tokens
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
