"""Answers that go on, as a tab's events or a log that is followed: they end with the right to them."""

from __future__ import annotations

from collections.abc import Callable

from flask import request

from trivet.errors import TrivetError
from trivet_web.accounts.principal import ANYONE_AT_ALL, principal_of_request
from trivet_web.accounts.rights import Right
from trivet_web.accounts.site_accounts import cookie_name, given_secret, site_accounts


def may_go_on(right: Right) -> Callable[[], bool]:
    """Whether who asks may still have the answer: logins end, keys are revoked and roles change meanwhile.

    Call it in the request, and what it returns at any time, from any thread.
    """
    if principal_of_request() is ANYONE_AT_ALL:
        return lambda: True
    credentials = site_accounts().credentials
    secret = given_secret() or request.cookies.get(cookie_name(), "")

    def may() -> bool:
        try:
            found = credentials.find(secret)
        except TrivetError:  # the registry is away: nobody can have been sent out
            return True
        return found is not None and right in found.rights

    return may
