"""The error tree, its HTTP faces and its drawing agree."""

from __future__ import annotations

import re

from trivet import errors


def _tree(root: type[errors.TrivetError]) -> dict[str, tuple[int, str]]:
    """The errors of this module; packages above may have subclasses of their own."""
    found = {root.__name__: (root.status, root.code)}
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found |= _tree(child)
    return found


def test_the_docstring_draws_every_error_with_its_status_and_code() -> None:
    drawn = {
        name: (int(status), code)
        for name, status, code in re.findall(r"(\w+) +(\d{3}) (\w+)", errors.__doc__ or "")
    }
    assert drawn == _tree(errors.TrivetError)


def test_a_request_error_names_its_field() -> None:
    error = errors.RequestError("n is 0", param="n")
    assert (error.message, error.param, error.status) == ("n is 0", "n", 400)
