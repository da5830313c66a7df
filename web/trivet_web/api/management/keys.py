"""/platform/v1/keys: keys of programs. Users see and make their own, admins all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import msgspec
from flask import Blueprint, Response, request
from sqlalchemy.orm import Session

from trivet.errors import PermissionDenied, RequestError
from trivet_registry.account_tables import ApiKey, Role, User
from trivet_registry.deployments_store import list_deployments
from trivet_registry.keys_store import (
    KeySettings,
    change_key,
    create_key,
    get_key,
    list_keys,
    revoke_key,
    settings_of_key,
)
from trivet_registry.usage_store import NOBODY
from trivet_registry.users_store import get_user
from trivet_web.accounts.acts import record
from trivet_web.accounts.principal import Principal, principal_of_request
from trivet_web.accounts.rights import (
    Right,
    check_scopes,
    requires,
    rights_of_key,
    rights_of_scopes,
)
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.api.management.account_objects import (
    KeyChanges,
    KeyObject,
    KeyRequest,
    key_facts,
    key_object,
)
from trivet_web.api.management.objects import Listing
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response

blueprint = Blueprint("keys", __name__, url_prefix="/platform/v1/keys")


@blueprint.get("")
@requires(Right.ACCOUNT)
@documented(Listing[KeyObject], query={"all": int})
def list_all() -> Response:
    """One's own; `all`: everybody's, for admins. The newest first, revoked ones included."""
    principal = principal_of_request()
    sees_all = principal.is_admin and (request.args.get("all") == "1" or not principal.user_id)
    with site_accounts().database.reading() as session:
        rows = list_keys(session, None if sees_all else principal.user_id)
        return json_response(Listing([key_object(row) for row in rows]))


@blueprint.post("")
@requires(Right.ACCOUNT)
@documented(KeyObject, body=KeyRequest, status=201)
def create() -> Response:
    """The answer has the key, which nobody can see again. Raises: RequestError, PermissionDenied."""
    body = read_body(KeyRequest)
    check_scopes(body.scopes)
    missing = rights_of_scopes(body.scopes) - principal_of_request().rights
    if missing:
        raise PermissionDenied(
            f"a key of these scopes would have the right to {', '.join(sorted(missing))}, which "
            f"{principal_of_request().name} has not; leave scopes out",
            param="scopes",
        )
    _check_within(body, principal_of_request())
    with site_accounts().database.session() as session:
        settings = KeySettings(
            name=body.name,
            scopes=body.scopes,
            models=body.models,
            priority=body.priority,
            max_concurrency=body.max_concurrency,
            requests_per_minute=body.requests_per_minute,
            expires_at=body.expires_at,
        )
        row, key = create_key(session, _owner(session, body), settings)
        _check_models(row)
        record(session, "key.create", f"key {row.id}", after=key_facts(row))
        response = json_response(key_object(row, key, _notices(session, row)), 201)
    response.headers["Cache-Control"] = "no-store"
    return response


@blueprint.get("/<int:key_id>")
@requires(Right.ACCOUNT)
@documented(KeyObject)
def get(key_id: int) -> Response:
    """Raises: NotFound, for another's, too."""
    with site_accounts().database.reading() as session:
        return json_response(key_object(_visible(session, key_id)))


@blueprint.patch("/<int:key_id>")
@requires(Right.ADMINISTER)
@documented(KeyObject, body=KeyChanges)
def change(key_id: int) -> Response:
    """For admins: whoever is limited must not widen it. Raises: NotFound, RequestError."""
    body = read_body(KeyChanges)
    given = {
        name: value
        for name in body.__struct_fields__
        if (value := getattr(body, name)) is not msgspec.UNSET
        and (value is not None or name not in ("name", "priority", "scopes"))
    }
    check_scopes(given.get("scopes", ()))
    with site_accounts().database.session() as session:
        row = get_key(session, key_id)
        before = key_facts(row)
        change_key(row, replace(settings_of_key(row), **given))
        _check_models(row)
        record(session, "key.change", f"key {row.id}", before, key_facts(row))
        return json_response(key_object(row, notices=_notices(session, row)))


@blueprint.delete("/<int:key_id>")
@requires(Right.ACCOUNT)
@documented(KeyObject)
def revoke(key_id: int) -> Response:
    """For good; every web process refuses it within a second. Raises: NotFound."""
    with site_accounts().database.session() as session:
        row = _visible(session, key_id)
        before = key_facts(row)
        revoke_key(session, row)
        record(session, "key.revoke", f"key {row.id}", before, key_facts(row))
        return json_response(key_object(row))


def _check_within(body: KeyRequest, maker: Principal) -> None:
    """A key makes none that may more; a login may all that its user may, and an admin changes any limit.

    Raises: PermissionDenied naming the field.
    """
    if maker.key_id == NOBODY or maker.is_admin:
        return
    if maker.max_concurrency is not None or maker.requests_per_minute is not None:
        raise PermissionDenied(
            f"{maker.name} has a limit of requests, which further keys would multiply; log in to make one"
        )
    if maker.models is not None and not (body.models is not None and maker.models.issuperset(body.models)):
        raise _wider("models", body.models, f"some of {', '.join(sorted(maker.models))}")
    if body.priority < maker.priority:
        raise _wider("priority", body.priority, f"{maker.priority} or more")
    if maker.expires_s != inf and (body.expires_at is None or body.expires_at.timestamp() > maker.expires_s):
        raise _wider(
            "expires_at", body.expires_at, f"{datetime.fromtimestamp(maker.expires_s, UTC)} or earlier"
        )


def _check_models(row: ApiKey) -> None:
    """Raises: RequestError where scopes promise what a key for some models has not."""
    role = None if row.user is None else Role(row.user.role)
    beyond = rights_of_key(row.scopes, role, None) - rights_of_key(row.scopes, role, row.models)
    if beyond:
        raise RequestError(
            f"a key for some models uses them and no more, and these scopes stand for the right to "
            f"{', '.join(sorted(beyond))}, too; leave them out, or leave models out",
            param="scopes",
        )


def _notices(session: Session, row: ApiKey) -> list[str]:
    """Of a deployment that may come later, and of a name that tells two keys of one owner no more apart."""
    deployed = {each.name for each in list_deployments(session)}
    notices = [
        f"no deployment is named {name!r} yet; there are: {', '.join(sorted(deployed)) or 'none'}"
        for name in row.models or ()
        if name not in deployed
    ]
    twins = [
        each.id
        for each in list_keys(session, row.user_id)
        if (each.name, each.user_id) == (row.name, row.user_id) and each is not row and not each.revoked_at
    ]
    if twins:
        notices.append(f"key {', '.join(map(str, sorted(twins)))} has the name {row.name!r}, too")
    return notices


def _wider(field: str, value: object, allowed: str) -> PermissionDenied:
    return PermissionDenied(
        f"{field} is {value!s:.200}; a key makes none that may more than itself: it must be {allowed}",
        param=field,
    )


def _visible(session: Session, key_id: int) -> ApiKey:
    """Raises: NotFound, the same for another's and for none."""
    principal = principal_of_request()
    return get_key(session, key_id, None if principal.is_admin else principal.user_id)


def _owner(session: Session, body: KeyRequest) -> User | None:
    """Raises: PermissionDenied, NotFound; RequestError where nobody is named and nobody asks."""
    principal = principal_of_request()
    if body.user is msgspec.UNSET:
        return get_user(session, principal.user_name) if principal.user_name else None
    if not principal.is_admin and body.user != principal.user_name:
        raise PermissionDenied("only an admin makes keys for others; leave user out", param="user")
    if body.user is None:
        return None
    if not body.user:
        raise RequestError("user is empty; name one, or leave it out", param="user")
    return get_user(session, body.user)
