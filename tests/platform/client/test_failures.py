"""From error objects back to exceptions."""

from __future__ import annotations

import pytest

from trivet import errors
from trivet.client.failures import ErrorObject, failure, failure_of

TREE = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TrivetError)
]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself(kind: type[errors.TrivetError]) -> None:
    sent = kind("the message")
    back = failure(ErrorObject(sent.message, "some_type", None, sent.code), sent.status)
    assert type(back) is kind
    assert back.message == "the message"


def test_the_field_at_fault_comes_back() -> None:
    body = b'{"error": {"message": "m", "type": "t", "param": "top_p", "code": "invalid_request"}}'
    error = failure_of(400, body, {})
    assert isinstance(error, errors.RequestError)
    assert error.param == "top_p"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.RequestError),
        (401, errors.AuthenticationError),
        (404, errors.NotFound),
        (418, errors.RequestError),
        (429, errors.Overloaded),
        (500, errors.TrivetError),
        (502, errors.Unavailable),
    ],
)
def test_a_foreign_answer_is_named_by_its_status_and_quoted(status: int, kind: type[Exception]) -> None:
    page = b"<!doctype html><html><style>p {color: red}</style>\n  a <b>proxy</b> says no </html>"
    error = failure_of(status, page, {})
    assert type(error) is kind
    assert error.message == f"the server answered {status}, not as Trivet does: a proxy says no"


def test_an_unknown_code_falls_back_to_the_status() -> None:
    assert type(failure(ErrorObject("m", code="tokens_exceeded"), 429)) is errors.Overloaded
    assert type(failure(ErrorObject("m", code=400), 400)) is errors.RequestError


@pytest.mark.parametrize("kind", [errors.Overloaded, errors.DeadlinePassed])
def test_the_wait_that_the_server_asks_for_comes_back(kind: type[errors.TrivetError]) -> None:
    body = f'{{"error": {{"message": "m", "code": "{kind.code}"}}}}'.encode()
    error = failure_of(kind.status, body, {"retry-after": "7"})
    assert type(error) is kind
    assert error.retry_after_s == 7


def test_a_wait_that_nobody_can_read_is_a_second() -> None:
    error = failure_of(429, b"", {"retry-after": "soon"})
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after_s == 1
