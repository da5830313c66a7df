"""What TGI's clients get back, as structs; field names are TGI's."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from trivet_web.error_objects import ErrorObject

_KINDS = {429: "overloaded", 503: "overloaded", 400: "validation", 404: "validation", 413: "validation"}


class TokenObject(msgspec.Struct, frozen=True):
    """A token of the answer. In a stream `text` is what it made certain: joined they are the answer."""

    id: int
    text: str
    logprob: float | None
    special: bool


class PrefillToken(msgspec.Struct, frozen=True):
    """A token of the prompt; the first one has no logprob."""

    id: int
    text: str
    logprob: float | None


class Details(msgspec.Struct, frozen=True):
    """Of a whole answer."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[PrefillToken]
    tokens: list[TokenObject]
    top_tokens: list[list[TokenObject]] | UnsetType = UNSET


class GenerateObject(msgspec.Struct, frozen=True):
    """A whole answer."""

    generated_text: str
    details: Details | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True):
    """In the last event."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int


class StreamObject(msgspec.Struct, frozen=True):
    """One event: a token. The last one has the whole text."""

    index: int
    token: TokenObject
    top_tokens: list[TokenObject]
    generated_text: str | None
    details: StreamDetails | None


class InfoObject(msgspec.Struct, frozen=True):
    """Of `/info`."""

    model_id: str
    model_sha: str | None
    model_pipeline_tag: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str


class TgiError(msgspec.Struct, frozen=True):
    """The body of an answer that failed, or an event in a stream that failed."""

    error: str
    error_type: str


def error_form(error: ErrorObject, status: int) -> tuple[TgiError, int]:
    """TGI answers what is wrong with a request with 422."""
    return TgiError(error.message, _KINDS.get(status, "generation")), 422 if status == 400 else status
