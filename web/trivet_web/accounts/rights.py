"""What may be done, by whom: the tables of roles and scopes, and what each route needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from flask import Flask

from trivet.errors import RequestError
from trivet_registry.account_tables import Role

V = TypeVar("V", bound=Callable[..., Any])
_ATTRIBUTE = "trivet_right"


class Right(StrEnum):
    """What a route needs; one each."""

    NOTHING = "nothing"  # health, login, the files of the console
    INFER = "infer"  # use models
    METRICS = "metrics"
    READ = "read"  # see what is deployed, registered and how it does
    OPERATE = "operate"  # change what is deployed and registered
    ACCOUNT = "account"  # one's own keys, sessions and usage
    ADMINISTER = "administer"  # users, others' keys, the audit log


class Scope(StrEnum):
    """What a key may be made for."""

    INFER = "infer"
    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"


ALL = frozenset(Right)
OPEN = frozenset({Right.NOTHING, Right.INFER, Right.METRICS})  # to anyone on loopback, without users
RIGHTS_OF_ROLE: Mapping[Role, frozenset[Right]] = {
    Role.ADMIN: ALL,
    Role.OPERATOR: ALL - {Right.ADMINISTER},
    Role.USER: frozenset({Right.NOTHING, Right.INFER, Right.ACCOUNT}),
    Role.VIEWER: frozenset({Right.NOTHING, Right.READ, Right.METRICS, Right.ACCOUNT}),
}
RIGHTS_OF_SCOPE: Mapping[Scope, frozenset[Right]] = {
    Scope.INFER: frozenset({Right.NOTHING, Right.INFER}),
    Scope.READ: frozenset({Right.NOTHING, Right.READ, Right.METRICS}),
    Scope.OPERATE: frozenset({Right.NOTHING, Right.READ, Right.METRICS, Right.OPERATE}),
    Scope.ADMIN: ALL - {Right.INFER},
}
# Of a key for some models: all else shows or changes what is of all of them.
RIGHTS_FOR_MODELS = frozenset({Right.NOTHING, Right.INFER, Right.ACCOUNT})


def requires(right: Right) -> Callable[[V], V]:
    """Declare at a view what it needs."""

    def mark(view: V) -> V:
        setattr(view, _ATTRIBUTE, right)
        return view

    return mark


def right_of(view: Callable[..., Any]) -> Right | None:
    """None: nobody declared it."""
    found = getattr(view, _ATTRIBUTE, None)
    return found if isinstance(found, Right) else None


def check_routes(app: Flask) -> None:
    """Raises: RuntimeError naming the routes that declare nothing: nobody could say who may use them."""
    undeclared = sorted(
        f"{rule.rule} ({rule.endpoint})"
        for rule in app.url_map.iter_rules()
        if right_of(app.view_functions[rule.endpoint]) is None
    )
    if undeclared:
        raise RuntimeError(
            f"these routes do not say who may use them: {', '.join(undeclared)}; put @requires(Right...) at "
            "their views (trivet_web/accounts/rights.py)"
        )


def rights_of_scopes(scopes: Iterable[str]) -> frozenset[Right]:
    """Of all of them together; one of a newer Trivet gives none."""
    known = [RIGHTS_OF_SCOPE[Scope(scope)] for scope in scopes if scope in RIGHTS_OF_SCOPE]
    return frozenset().union(*known)


def rights_of_key(scopes: Iterable[str], role: Role | None, models: Iterable[str] | None) -> frozenset[Right]:
    """No more than its owner's role has (None: the site's key)."""
    rights = rights_of_scopes(scopes)
    if role is not None:
        rights &= RIGHTS_OF_ROLE[role]
    return rights if models is None else rights & RIGHTS_FOR_MODELS


def check_scopes(scopes: Iterable[str]) -> None:
    """Raises: RequestError."""
    for scope in scopes:
        if scope not in RIGHTS_OF_SCOPE:
            raise RequestError(
                f"scope {scope[:40]!r} does not exist; there are {', '.join(Scope)}", param="scopes"
            )
