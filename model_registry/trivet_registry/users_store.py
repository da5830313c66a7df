"""Users and their sessions. Passwords arrive hashed, ids of sessions are hashed here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from trivet.errors import Conflict, NotFound, RequestError
from trivet_registry.account_tables import ApiKey, LoginSession, Role, User
from trivet_registry.tables import utc_now

IDLE = timedelta(hours=12)
LIFETIME = timedelta(days=7)
SEEN_EVERY = timedelta(minutes=1)  # how exactly a session's last use is known
_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,63}")


def hash_of(secret: str) -> str:
    """Under which a session or a key is known here. Fast: it hides 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def normal_name(name: str) -> str:
    """Upper and lower case are the same user."""
    return name.strip().lower()


def parse_role(text: str) -> Role:
    """Raises: RequestError."""
    try:
        return Role(text)
    except ValueError:
        roles = ", ".join(Role)
        raise RequestError(f"role is {text[:40]!r}; it must be one of {roles}", param="role") from None


def count_users(session: Session) -> int:
    """Disabled ones, too: a site that had users is never open again by itself."""
    return session.execute(select(func.count()).select_from(User)).scalar_one()


def create_user(session: Session, name: str, role: str, password_hash: str) -> User:
    """Raises: RequestError for a name that is none; Conflict where it is taken."""
    plain = normal_name(name)
    if not _NAME.fullmatch(plain):
        raise RequestError(
            f"name is {name[:80]!r}; it must be 1 to 64 letters, digits and . _ @ -, a letter or digit first",
            param="name",
        )
    if find_user(session, plain) is not None:
        raise Conflict(f"a user {plain!r} exists already; choose another name", param="name")
    user = User(name=plain, role=parse_role(role), password_hash=password_hash)
    session.add(user)
    session.flush()
    return user


def find_user(session: Session, name: str) -> User | None:
    """By name; also a disabled one."""
    return session.scalars(select(User).where(User.name == normal_name(name))).one_or_none()


def get_user(session: Session, name: str) -> User:
    """Raises: NotFound."""
    user = find_user(session, name)
    if user is None:
        raise NotFound(f"user {name[:80]!r} does not exist; see `trivet users list`", param="name")
    return user


def list_users(session: Session) -> Sequence[User]:
    """By name, disabled ones included."""
    return session.scalars(select(User).order_by(User.name)).all()


def set_role(session: Session, user: User, role: str) -> None:
    """Its sessions end. Raises: RequestError; Conflict where nobody would administer the site."""
    wanted = parse_role(role)
    if wanted is not Role.ADMIN:
        _check_not_last_admin(session, user)
    user.role = wanted
    end_sessions(session, user)


def set_disabled(session: Session, user: User, is_disabled: bool) -> None:
    """Its sessions end, its keys rest. Raises: Conflict where nobody would administer the site."""
    if is_disabled:
        _check_not_last_admin(session, user)
    user.disabled_at = utc_now() if is_disabled else None
    end_sessions(session, user)


def set_password_hash(session: Session, user: User, password_hash: str, keep: str | None = None) -> None:
    """Its sessions end, but the one whose hash is `keep`."""
    user.password_hash = password_hash
    end_sessions(session, user, keep)


def remove_user(session: Session, user: User) -> None:
    """With its sessions and keys. Raises: Conflict where nobody would administer the site."""
    _check_not_last_admin(session, user)
    session.execute(delete(ApiKey).where(ApiKey.user_id == user.id))
    session.execute(delete(LoginSession).where(LoginSession.user_id == user.id))
    session.delete(user)


def _check_not_last_admin(session: Session, user: User) -> None:
    # Locked, so that two admins cannot take the role from each other at the same time.
    admins = session.scalars(
        select(User).where(User.role == Role.ADMIN, User.disabled_at.is_(None)).with_for_update()
    ).all()
    if [admin.id for admin in admins] == [user.id]:
        raise Conflict(f"{user.name} is the last admin; make another user admin first", param="name")


# ---- sessions ------------------------------------------------------------------------------------


def open_session(session: Session, user: User, secret: str, address: str, user_agent: str) -> LoginSession:
    """`secret` is what its client will show; old sessions are swept away."""
    now = utc_now()
    session.execute(
        delete(LoginSession).where((LoginSession.expires_at < now) | (LoginSession.last_seen_at < now - IDLE))
    )
    row = LoginSession(
        hash=hash_of(secret),
        user_id=user.id,
        expires_at=now + LIFETIME,
        address=address[:64],
        user_agent=user_agent[:200],
    )
    user.last_login_at = now
    session.add(row)
    session.flush()
    return row


def find_session(session: Session, session_hash: str, now: datetime) -> LoginSession | None:
    """None where it has ended, or its user may not log in."""
    row = session.get(LoginSession, session_hash)
    if row is None or row.user.disabled_at is not None:
        return None
    # One that ends long after it should was opened by a clock that was wrong.
    lives = now < row.expires_at < now + 2 * LIFETIME
    return row if lives and now - row.last_seen_at < IDLE else None


def list_sessions(session: Session, user: User | None = None) -> Sequence[LoginSession]:
    """The newest first; `user` None: everybody's."""
    now = utc_now()
    query = (
        select(LoginSession)
        .where(LoginSession.expires_at > now, LoginSession.last_seen_at > now - IDLE)
        .order_by(LoginSession.last_seen_at.desc())
    )
    if user is not None:
        query = query.where(LoginSession.user_id == user.id)
    return session.scalars(query).all()


def end_session(session: Session, session_hash: str) -> bool:
    """Whether it was there."""
    row = session.get(LoginSession, session_hash)
    if row is None:
        return False
    session.delete(row)
    session.flush()
    return True


def end_sessions(session: Session, user: User, keep: str | None = None) -> None:
    """All of a user but the one whose hash is `keep`."""
    query = delete(LoginSession).where(LoginSession.user_id == user.id)
    session.execute(query if keep is None else query.where(LoginSession.hash != keep))
