"""The two forms of a batch: from a line to a request of the API, from its answer to a result's line."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from trivet.commands.offline import Generated
from trivet.errors import RequestError
from trivet.sampling_params import SamplingParams
from trivet_web.batch.input_file import MAX_LINE_BYTES, InputLine

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
OK = 200
T = TypeVar("T", bound=msgspec.Struct)
# Of SamplingParams, but not in a simple line, whose result has one text and nothing about its tokens.
NOT_SIMPLE = frozenset({"n", "logprobs", "prompt_logprobs", "logprob_token_ids"})


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted."""

    url: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: int
    request_id: str
    body: bytes


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    text: str | None = None
    message: _Message | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None


class AnswerBody(msgspec.Struct):
    """What is read of an answer."""

    usage: _Usage = msgspec.field(default_factory=_Usage)
    choices: list[_Choice] = []
    error: _Error | None = None


class InvalidLine(RequestError):
    """No JSON at all; OpenAI's code."""

    code = "invalid_json_line"


class Form(Protocol):
    """One way to write lines and results."""

    def request(self, line: InputLine) -> Request:
        """Raises: RequestError: the line cannot be asked."""

    def result(self, line: InputLine, answered: Answered) -> bytes:
        """The result's line, without its end."""

    def fault(self, line: InputLine, error: RequestError) -> bytes:
        """The same for a line that cannot be asked."""


class BatchLine(msgspec.Struct):
    """A line of OpenAI's batch files."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


class BatchResponse(msgspec.Struct):
    """The answer over HTTP as it would have been."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchError(msgspec.Struct, omit_defaults=True):
    """Why a line was not asked at all."""

    code: str
    message: str
    line: int | None = None


class BatchResult(msgspec.Struct):
    """A line of OpenAI's output and error files, which are one file here."""

    id: str
    custom_id: str | None
    response: BatchResponse | None
    error: BatchError | None


class BatchForm:
    """OpenAI's. `defaults` are fields of the body for lines that do not have them."""

    def __init__(self, model: str, defaults: Mapping[str, Any]) -> None:
        self._defaults = {"model": model, **defaults}

    def request(self, line: InputLine) -> Request:
        """As `Form`."""
        given = _decoded(line, BatchLine)
        if given.method != "POST":
            raise RequestError(f"method is {given.method!r:.40}; it must be POST", param="method")
        if given.url not in URLS:
            raise RequestError(f"url is {given.url!r:.80}; it must be one of {', '.join(URLS)}", param="url")
        if given.body.get("stream"):
            raise RequestError("body.stream is true; a batch is not streamed: leave it out", param="stream")
        defaults = self._defaults
        if given.url == "/v1/embeddings":
            defaults = {"model": defaults["model"]}
        return Request(given.url, msgspec.json.encode(_filled(given.body, defaults)))

    def result(self, line: InputLine, answered: Answered) -> bytes:
        """As `Form`."""
        response = BatchResponse(answered.status, answered.request_id, msgspec.Raw(answered.body.strip()))
        return msgspec.json.encode(BatchResult(_new_id(), self._custom_id(line), response, None))

    def fault(self, line: InputLine, error: RequestError) -> bytes:
        """As `Form`; `line` says where, for a custom_id may be what is missing."""
        told = BatchError(error.code, error.message, line.number)
        return msgspec.json.encode(BatchResult(_new_id(), self._custom_id(line), None, told))

    @staticmethod
    def _custom_id(line: InputLine) -> str | None:
        try:
            return msgspec.json.decode(line.data or b"{}", type=_Named).custom_id
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


class _Named(msgspec.Struct):
    custom_id: str | None = None


class SimpleLine(msgspec.Struct, forbid_unknown_fields=True):
    """A prompt or messages, and its own sampling where it differs."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    id: str | int | None = None
    sampling: dict[str, Any] = {}


class SimpleForm:
    """Ours."""

    def __init__(self, model: str, defaults: Mapping[str, Any], max_tokens: int) -> None:
        self._defaults = {"max_tokens": max_tokens, **defaults, "model": model}

    def request(self, line: InputLine) -> Request:
        """As `Form`."""
        given = _decoded(line, SimpleLine)
        if (given.prompt is None) == (given.messages is None):
            raise RequestError("give either 'prompt' or 'messages'")
        known = set(SamplingParams.__struct_fields__) - NOT_SIMPLE
        unknown = sorted(set(given.sampling) - known)
        if unknown:
            raise RequestError(
                f"sampling has no field {unknown[0]!r} in a simple line, which takes "
                f"{', '.join(sorted(known))}; a batch line takes all of the API",
                param="sampling",
            )
        body = _filled(given.sampling, self._defaults)
        if given.messages is not None:
            return Request("/v1/chat/completions", msgspec.json.encode({**body, "messages": given.messages}))
        return Request("/v1/completions", msgspec.json.encode({**body, "prompt": given.prompt}))

    def result(self, line: InputLine, answered: Answered) -> bytes:
        """As `Form`."""
        body = read_answer(answered)
        if answered.status != OK or not body.choices:
            message = body.error.message if body.error else f"status {answered.status}"
            return self._failed(line, message, body.usage)
        choice, usage = body.choices[0], body.usage
        text = (choice.message.content if choice.message else choice.text) or ""
        return msgspec.json.encode(
            Generated(
                self._id(line), text, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens
            )
        )

    def fault(self, line: InputLine, error: RequestError) -> bytes:
        """As `Form`."""
        return self._failed(line, f"line {line.number}: {error.message}", _Usage())

    def _failed(self, line: InputLine, message: str, usage: _Usage) -> bytes:
        failed = Generated(self._id(line), "", "error", usage.prompt_tokens, usage.completion_tokens, message)
        return msgspec.json.encode(failed)

    @staticmethod
    def _id(line: InputLine) -> str | int:
        try:
            given = msgspec.json.decode(line.data or b"{}", type=_WithId).id
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            given = None
        return line.index if given is None else given


class _WithId(msgspec.Struct):
    id: str | int | None = None


def read_answer(answered: Answered) -> AnswerBody:
    """What an answer says about itself; nothing of one that is written otherwise."""
    try:
        return msgspec.json.decode(answered.body, type=AnswerBody)
    except msgspec.MsgspecError:
        return AnswerBody()


def _decoded(line: InputLine, kind: type[T]) -> T:
    """Raises: RequestError."""
    if line.data is None:
        raise RequestError(f"the line has more than {MAX_LINE_BYTES} bytes; send less in one request")
    try:
        return msgspec.json.decode(line.data, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidLine(f"the line is no valid JSON: {error}") from error
    except RecursionError:
        raise InvalidLine("the line is nested too deeply; give flat JSON") from None


def _filled(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are given, and of the others the defaults."""
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}


def _new_id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"
