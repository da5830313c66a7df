"""The calls about who may do what: `client.users`, `.keys`, `.sessions`, `.audit`, `.usage`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import TypedDict

from trivet.client.account_results import (
    ApiKey,
    AuditEntry,
    AuditVerdict,
    LoginSession,
    Myself,
    UsageReport,
    User,
)
from trivet.client.calls import ROOT, C, Call, Group, ask, ask_list, call, given, nothing, place


class UserChanges(TypedDict, total=False):
    """What `users.update` changes; the user's sessions end."""

    role: str
    is_disabled: bool
    password: str


class KeyChanges(TypedDict, total=False):
    """What `keys.update` changes; None takes a limit back."""

    name: str
    scopes: Sequence[str]
    models: Sequence[str] | None
    priority: int
    max_concurrency: int | None
    requests_per_minute: int | None
    expires_at: datetime | None


class Users(Group[C]):
    """Who can log in; for admins."""

    @call
    def list(self) -> Call[tuple[User, ...]]:
        """By name, disabled ones included."""
        return ask_list(f"{ROOT}/users", User)

    @call
    def create(self, name: str, password: str, role: str = "user") -> Call[User]:
        """The first user ends the time when inference was open to anyone. Raises: Conflict, RequestError."""
        return ask("POST", f"{ROOT}/users", User, body=given(name=name, password=password, role=role))

    @call
    def get(self, name: str) -> Call[User]:
        """Raises: NotFound."""
        return ask("GET", f"{ROOT}/users/{place(name)}", User)

    @call
    def update(self, name: str, changes: UserChanges) -> Call[User]:
        """Raises: NotFound; Conflict where no admin would be left."""
        return ask("PATCH", f"{ROOT}/users/{place(name)}", User, body=dict(changes))

    @call
    def remove(self, name: str) -> Call[None]:
        """With its sessions and keys. Raises: NotFound; Conflict where no admin would be left."""
        return ask("DELETE", f"{ROOT}/users/{place(name)}", object).then(nothing)

    @call
    def change_own_password(self, current: str, password: str) -> Call[None]:
        """For who is logged in. Raises: AuthenticationError, RequestError."""
        body = given(current=current, password=password)
        return ask("POST", f"{ROOT}/password", object, body=body).then(nothing)


class Sessions(Group[C]):
    """Logins: browsers keep a cookie, programs rather use keys.

    >>> client.sessions.myself().name
    'the run token'
    """

    @call
    def open(self, name: str, password: str) -> Call[Myself]:
        """Log in; the connection keeps the cookie. Raises: AuthenticationError; Overloaded after too many."""
        return ask("POST", f"{ROOT}/sessions", Myself, body=given(name=name, password=password))

    @call
    def myself(self) -> Call[Myself]:
        """Who asks."""
        return ask("GET", f"{ROOT}/session", Myself)

    @call
    def close(self) -> Call[None]:
        """Log out."""
        return ask("DELETE", f"{ROOT}/session", object).then(nothing)

    @call
    def list(self, *, everybody: bool = False) -> Call[tuple[LoginSession, ...]]:
        """One's own, or for admins everybody's."""
        return ask_list(f"{ROOT}/sessions", LoginSession, {"all": 1 if everybody else None})

    @call
    def end(self, session_id: str) -> Call[None]:
        """Raises: NotFound."""
        return ask("DELETE", f"{ROOT}/sessions/{place(session_id)}", object).then(nothing)


class Keys(Group[C]):
    """Keys of programs: one's own, or for admins everybody's.

    >>> made = client.keys.create("ci", models=["null"], requests_per_minute=600)
    >>> made.key.startswith(made.prefix), made.scopes
    (True, ('infer',))
    >>> client.keys.update(made.id, {"requests_per_minute": None}).requests_per_minute is None
    True
    >>> client.keys.revoke(made.id).revoked_at is not None
    True
    """

    @call
    def list(self, *, everybody: bool = False) -> Call[tuple[ApiKey, ...]]:
        """The newest first, revoked ones included."""
        return ask_list(f"{ROOT}/keys", ApiKey, {"all": 1 if everybody else None})

    @call
    def create(
        self,
        name: str,
        *,
        scopes: Sequence[str] = ("infer",),
        models: Sequence[str] | None = None,
        priority: int = 0,
        max_concurrency: int | None = None,
        requests_per_minute: int | None = None,
        expires_at: datetime | None = None,
        user: str | None = None,
    ) -> Call[ApiKey]:
        """`key` of the answer is the key, which nobody can see again.

        Args:
            scopes: of infer, read, operate, admin.
            models: the deployments that it may use; None: all.
            priority: the best that its requests may have.
            user: whose; None: one's own.

        Raises: RequestError, PermissionDenied, NotFound.
        """
        body = given(
            name=name,
            scopes=list(scopes),
            models=None if models is None else [*models],
            priority=priority,
            max_concurrency=max_concurrency,
            requests_per_minute=requests_per_minute,
            expires_at=expires_at,
            user=user,
        )
        return ask("POST", f"{ROOT}/keys", ApiKey, body=body)

    @call
    def get(self, key_id: int) -> Call[ApiKey]:
        """Raises: NotFound."""
        return ask("GET", f"{ROOT}/keys/{key_id}", ApiKey)

    @call
    def update(self, key_id: int, changes: KeyChanges) -> Call[ApiKey]:
        """For admins. Raises: NotFound, RequestError."""
        return ask("PATCH", f"{ROOT}/keys/{key_id}", ApiKey, body=dict(changes))

    @call
    def revoke(self, key_id: int) -> Call[ApiKey]:
        """For good. Raises: NotFound."""
        return ask("DELETE", f"{ROOT}/keys/{key_id}", ApiKey)


class Audit(Group[C]):
    """Who did what; for admins.

    >>> verdict = client.audit.verify()
    >>> verdict.is_whole
    True
    >>> client.audit.verify(verdict.anchor).is_whole
    True
    """

    @call
    def list(
        self, limit: int = 100, *, before: int | None = None, action: str | None = None
    ) -> Call[tuple[AuditEntry, ...]]:
        """The newest first; `before` goes on after an id."""
        return ask_list(f"{ROOT}/audit", AuditEntry, {"limit": limit, "before": before, "action": action})

    @call
    def verify(self, anchor: str | None = None) -> Call[AuditVerdict]:
        """Read the whole log; `fault` names the first entry that was edited or removed."""
        return ask("GET", f"{ROOT}/audit/verify", AuditVerdict, query={"anchor": anchor})


class Usage(Group[C]):
    """Tokens by key, user, model and day: one's own, or for admins everybody's.

    >>> client.usage.report().currency
    ''
    >>> client.usage.csv().splitlines()[0][:14]
    'day,user,key_i'
    """

    @call
    def report(
        self,
        first: date | None = None,
        last: date | None = None,
        *,
        key: int | None = None,
        everybody: bool = False,
    ) -> Call[UsageReport]:
        """Days of UTC, both included; without, the last 30."""
        return ask("GET", f"{ROOT}/usage", UsageReport, query=_query(first, last, key, everybody))

    @call
    def csv(
        self,
        first: date | None = None,
        last: date | None = None,
        *,
        key: int | None = None,
        everybody: bool = False,
    ) -> Call[str]:
        """The same as a table."""
        return ask("GET", f"{ROOT}/usage.csv", str, query=_query(first, last, key, everybody))


def _query(first: date | None, last: date | None, key: int | None, everybody: bool) -> dict[str, object]:
    return {
        "first": None if first is None else first.isoformat(),
        "last": None if last is None else last.isoformat(),
        "key": key,
        "all": 1 if everybody else None,
    }
