"""Who asks: what is behind a request, once its secret has been looked up."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flask import request

from trivet.errors import PermissionDenied
from trivet_registry.account_tables import ApiKey, LoginSession, Role, User
from trivet_registry.usage_store import NOBODY
from trivet_web.accounts.rights import ALL, OPEN, RIGHTS_OF_ROLE, Right, rights_of_key

PRINCIPAL = "trivet.principal"  # in the environment: no header can put it there


@dataclass(frozen=True, slots=True)
class Principal:
    """Who, and what for. `name` is how the audit log calls them."""

    name: str
    rights: frozenset[Right]
    user_id: int = NOBODY
    user_name: str = ""
    role: str = ""
    key_id: int = NOBODY
    session_hash: str | None = None
    models: frozenset[str] | None = None  # None: all
    priority: int = 0  # the best it may ask for
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    expires_s: float = float("inf")  # seconds since the epoch

    def may_use(self, model: str) -> bool:
        """Whether this deployment exists, for them."""
        return self.models is None or model in self.models

    @property
    def is_admin(self) -> bool:
        return Right.ADMINISTER in self.rights

    @property
    def owner(self) -> str:
        """Under which they keep what they store; empty for whoever has the whole site."""
        if self.user_id != NOBODY:
            return f"user-{self.user_id}"
        return f"key-{self.key_id}" if self.key_id != NOBODY else ""


TOKEN = Principal("the run token", ALL)  # whoever can read the home's run directory
ANYONE = Principal("anyone", OPEN)
ANYONE_AT_ALL = Principal("anyone", ALL)  # auth = off
STRANGER = Principal("nobody", frozenset({Right.NOTHING}))


def principal_of_key(row: ApiKey) -> Principal | None:
    """None: revoked, or its owner is disabled."""
    user = row.user
    if row.revoked_at is not None or (user is not None and user.disabled_at is not None):
        return None
    rights = rights_of_key(row.scopes, None if user is None else Role(user.role), row.models)
    owner = "the site" if user is None else user.name
    return Principal(
        f"key {row.prefix} of {owner}",
        rights,
        user_id=NOBODY if user is None else user.id,
        user_name="" if user is None else user.name,
        role="" if user is None else user.role,
        key_id=row.id,
        models=None if row.models is None else frozenset(row.models),
        priority=row.priority,
        max_concurrency=row.max_concurrency,
        requests_per_minute=row.requests_per_minute,
        expires_s=float("inf") if row.expires_at is None else row.expires_at.timestamp(),
    )


def principal_of_user(user: User) -> Principal:
    """With all that the role may."""
    return Principal(
        f"user {user.name}",
        RIGHTS_OF_ROLE[Role(user.role)],
        user_id=user.id,
        user_name=user.name,
        role=user.role,
    )


def principal_of_session(row: LoginSession) -> Principal:
    """A session has all that its user may."""
    user = principal_of_user(row.user)
    return replace(user, session_hash=row.hash, expires_s=row.expires_at.timestamp())


def principal_of_request() -> Principal:
    """As the guard has found them; a stranger where the route asks for nothing."""
    found: Principal = request.environ.get(PRINCIPAL, STRANGER)
    return found


def check_right(principal: Principal, right: Right) -> None:
    """Raises: PermissionDenied."""
    if right not in principal.rights:
        have = ", ".join(sorted(principal.rights - {Right.NOTHING})) or "nothing"
        raise PermissionDenied(
            f"this needs the right to {right}, and {principal.name} has: {have}; ask an admin of this site"
        )
