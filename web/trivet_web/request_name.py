"""The name of the request at hand: in its answer, in every line of the log about it."""

from __future__ import annotations

import re
import secrets

from flask import request

FORM = re.compile(r"[A-Za-z0-9._-]{1,64}")  # of a name that a client may choose
_PLACE = "trivet.request_id"  # in the environment: a view may go on in another context


def name_request() -> None:
    """By its client's word, so that its log and ours can be put side by side; else by one of ours."""
    given = request.headers.get("X-Request-ID", "")
    request.environ[_PLACE] = given if FORM.fullmatch(given) else secrets.token_hex(12)


def request_id() -> str:
    """Of the request at hand."""
    return str(request.environ.get(_PLACE, "-"))
