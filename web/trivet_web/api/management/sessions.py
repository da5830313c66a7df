"""/platform/v1/sessions: log in, see where one is logged in, end it."""

from __future__ import annotations

from flask import Blueprint, Response, request

from trivet.errors import NotFound
from trivet_registry.account_tables import LoginSession, Role
from trivet_registry.users_store import end_session, get_user, list_sessions
from trivet_web.accounts.acts import record
from trivet_web.accounts.login import log_in, log_out, with_cookie, without_cookie
from trivet_web.accounts.principal import Principal, principal_of_request
from trivet_web.accounts.rights import RIGHTS_OF_ROLE, Right, requires
from trivet_web.accounts.site_accounts import cookie_name, csrf_token, site_accounts
from trivet_web.api.documented import documented
from trivet_web.api.management.account_objects import (
    LoginRequest,
    SelfObject,
    SessionObject,
    session_object,
)
from trivet_web.api.management.objects import Listing
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response

blueprint = Blueprint("sessions", __name__, url_prefix="/platform/v1")


@blueprint.post("/sessions")
@requires(Right.NOTHING)
@documented(SelfObject, body=LoginRequest, status=201)
def open_one() -> Response:
    """Log in: the answer sets the session's cookie. Raises: AuthenticationError, Overloaded."""
    body = read_body(LoginRequest)
    login = log_in(body.name, body.password)
    me = SelfObject(
        name=f"user {login.name}",
        user=login.name,
        role=login.role,
        rights=sorted(RIGHTS_OF_ROLE[Role(login.role)]),
        csrf_token=csrf_token(login.secret),
    )
    return with_cookie(json_response(me, 201), login)


@blueprint.get("/session")
@requires(Right.ACCOUNT)
@documented(SelfObject)
def myself() -> Response:
    """Who asks, and what they may."""
    principal = principal_of_request()
    secret = request.cookies.get(cookie_name(), "")
    is_cookie = principal.session_hash is not None and "Authorization" not in request.headers
    return json_response(
        SelfObject(
            name=principal.name,
            user=principal.user_name or None,
            role=principal.role or None,
            rights=sorted(principal.rights),
            csrf_token=csrf_token(secret) if is_cookie else None,
        )
    )


@blueprint.delete("/session")
@requires(Right.ACCOUNT)
@documented(status=204)
def close() -> Response:
    """Log out."""
    log_out()
    return without_cookie(Response(status=204))


@blueprint.get("/sessions")
@requires(Right.ACCOUNT)
@documented(Listing[SessionObject], query={"all": int})
def list_all() -> Response:
    """One's own; `all`: everybody's, for admins."""
    principal = principal_of_request()
    with site_accounts().database.reading() as session:
        sees_all = principal.is_admin and (request.args.get("all") == "1" or not principal.user_id)
        user = None if sees_all else get_user(session, principal.user_name)
        rows = list_sessions(session, user)
        return json_response(Listing([session_object(row, principal.session_hash) for row in rows]))


@blueprint.delete("/sessions/<session_id>")
@requires(Right.ACCOUNT)
@documented(status=204)
def end(session_id: str) -> Response:
    """One's own, or anybody's for an admin. Raises: NotFound."""
    principal = principal_of_request()
    with site_accounts().database.session() as session:
        row = session.get(LoginSession, session_id)
        if row is None or not _may_end(principal, row):
            raise NotFound(f"session {session_id[:12]!r} does not exist", param="session_id")
        end_session(session, session_id)
        record(session, "session.end", f"session {session_id[:12]} of {row.user.name}")
    return Response(status=204)


def _may_end(principal: Principal, row: LoginSession) -> bool:
    return principal.is_admin or row.user_id == principal.user_id
