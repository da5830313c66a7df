"""Refuses text that no part of Trivet takes, wherever a request may carry it; JSON: api/request_body.py."""

from __future__ import annotations

from flask import Request, request

from trivet.errors import RequestError


class CheckedRequest(Request):
    """Its form holds no NUL character: PostgreSQL has none, file names neither."""

    def _load_form_data(self) -> None:
        """Raises: RequestError when the form is looked at first."""
        super()._load_form_data()
        for name, text in self.form.items(multi=True):
            _check(name, text)


def check_address() -> None:
    """Path and query of the request. Raises: RequestError."""
    _check("the path", request.path)
    for name, text in request.args.items(multi=True):
        _check(name, text)


def _check(name: str, text: str) -> None:
    if "\0" in name or "\0" in text:
        shown = name.replace("\0", "\\0")[:80]
        raise RequestError(f"{shown} contains a NUL character; remove it", param=shown)
