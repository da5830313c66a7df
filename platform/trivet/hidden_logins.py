"""Addresses as they may be shown: without the logins in them."""

from __future__ import annotations

import re

_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
_IN_QUERY = re.compile(
    r"(?P<name>[?&][^=&\s\"']*(?:passw|secret|token|credential)[^=&\s\"']*=)[^&\s\"']+", re.IGNORECASE
)


def without_logins(text: str) -> str:
    """Of every address in it what stands before the @, and what a query calls a password or the like."""
    return _IN_QUERY.sub(r"\g<name>...", _LOGIN.sub("...@", text))
