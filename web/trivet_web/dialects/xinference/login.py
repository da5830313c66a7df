"""POST /token: name and password for a bearer, as Xinference's `Client.login` asks for it."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response

from trivet_web.accounts.login import log_in
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response

blueprint = Blueprint("xinference_login", __name__)
PATH = "/token"


class TokenRequest(msgspec.Struct, kw_only=True):
    """A user of this site."""

    username: str
    password: str


class TokenObject(msgspec.Struct, frozen=True):
    """A session, to be sent as Authorization: Bearer."""

    access_token: str
    token_type: str = "bearer"


@blueprint.post(PATH)
@requires(Right.NOTHING)
@documented(TokenObject, body=TokenRequest)
def create() -> Response:
    """Log in. Raises: AuthenticationError, Overloaded after too many attempts."""
    body = read_body(TokenRequest)
    return json_response(TokenObject(log_in(body.username, body.password).secret))
