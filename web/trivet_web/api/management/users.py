"""/platform/v1/users: who can log in; and one's own password."""

from __future__ import annotations

from flask import Blueprint, Response, request

from trivet.errors import AuthenticationError, Conflict, PermissionDenied
from trivet_registry.account_tables import User
from trivet_registry.login_throttle import end_good_attempt
from trivet_registry.tables import utc_now
from trivet_registry.users_store import (
    create_user,
    get_user,
    list_users,
    remove_user,
    set_disabled,
    set_password_hash,
    set_role,
)
from trivet_web.accounts.acts import record
from trivet_web.accounts.login import is_guess_right, record_failed_guess
from trivet_web.accounts.passwords import check_new_password, hash_password
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.api.management.account_objects import (
    PasswordRequest,
    UserChanges,
    UserObject,
    UserRequest,
    user_object,
)
from trivet_web.api.management.objects import Listing
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response

blueprint = Blueprint("users", __name__, url_prefix="/platform/v1")


@blueprint.get("/users")
@requires(Right.ADMINISTER)
@documented(Listing[UserObject])
def list_all() -> Response:
    """By name, disabled ones included."""
    with site_accounts().database.reading() as session:
        return json_response(Listing([user_object(row) for row in list_users(session)]))


@blueprint.post("/users")
@requires(Right.ADMINISTER)
@documented(UserObject, body=UserRequest, status=201)
def create() -> Response:
    """The first one ends the time when inference was open to anyone. Raises: RequestError, Conflict."""
    body = read_body(UserRequest)
    password_hash = hash_password(body.password)
    with site_accounts().database.session() as session:
        user = create_user(session, body.name, body.role, password_hash)
        record(session, "user.create", user.name, after={"role": user.role})
        return json_response(user_object(user), 201)


@blueprint.get("/users/<name>")
@requires(Right.ADMINISTER)
@documented(UserObject)
def get(name: str) -> Response:
    """Raises: NotFound."""
    with site_accounts().database.reading() as session:
        return json_response(user_object(get_user(session, name)))


@blueprint.patch("/users/<name>")
@requires(Right.ADMINISTER)
@documented(UserObject, body=UserChanges)
def change(name: str) -> Response:
    """Its sessions end. Raises: NotFound, RequestError; Conflict where no admin would be left."""
    body = read_body(UserChanges)
    password_hash = None if body.password is None else hash_password(body.password)
    with site_accounts().database.session() as session:
        user = get_user(session, name)
        before = _facts(user)
        if body.role is not None:
            set_role(session, user, body.role)
        if body.is_disabled is not None:
            set_disabled(session, user, body.is_disabled)
        if password_hash is not None:
            set_password_hash(session, user, password_hash)
        after = _facts(user) | ({} if password_hash is None else {"password": "changed"})
        record(session, "user.change", user.name, before, after)
        return json_response(user_object(user))


@blueprint.delete("/users/<name>")
@requires(Right.ADMINISTER)
@documented(status=204)
def remove(name: str) -> Response:
    """With its sessions and keys. Raises: NotFound; Conflict where no admin would be left."""
    with site_accounts().database.session() as session:
        user = get_user(session, name)
        before = _facts(user)
        remove_user(session, user)
        record(session, "user.remove", user.name, before)
    return Response(status=204)


@blueprint.post("/password")
@requires(Right.ACCOUNT)
@documented(status=204, body=PasswordRequest)
def change_own_password() -> Response:
    """Other sessions of the user end.

    Raises: AuthenticationError, RequestError, PermissionDenied; Overloaded after too many wrong ones.
    """
    body, principal = read_body(PasswordRequest), principal_of_request()
    if principal.session_hash is None:
        raise PermissionDenied("this is for users who are logged in; an admin sets a password with a key")
    check_new_password(body.password)
    with site_accounts().database.reading() as session:
        current_hash = get_user(session, principal.user_name).password_hash
    if not is_guess_right(principal.user_name, body.current, current_hash):
        with site_accounts().database.session() as session:
            record_failed_guess(session, "user.change", principal.user_name)
        raise AuthenticationError("the current password is wrong", param="current")
    password_hash = hash_password(body.password)
    with site_accounts().database.session() as session:
        user = get_user(session, principal.user_name)
        if user.password_hash != current_hash:
            raise Conflict("the password was changed by somebody else meanwhile; log in again")
        end_good_attempt(session, user.name, request.remote_addr or "", utc_now())
        set_password_hash(session, user, password_hash, keep=principal.session_hash)
        record(session, "user.change", user.name, after={"password": "changed"})
    return Response(status=204)


def _facts(user: User) -> dict[str, object]:
    return {"role": user.role, "is_disabled": user.disabled_at is not None}
