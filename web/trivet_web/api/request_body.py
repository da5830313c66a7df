"""Reads a JSON body into a typed struct, and says which field is wrong in which way."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from flask import request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import RequestEntityTooLarge

from trivet.errors import RequestError, RequestTooLarge, UnsupportedParameter

T = TypeVar("T")
MAX_BODY_BYTES = 8 << 20  # a million token ids in digits, and more text than any context holds

INSTEAD: Mapping[str, str] = {
    "n": "send the request n times",
    "max_tokens": "send max_output_tokens",
    "max_completion_tokens": "send max_output_tokens",
    "logprobs": "send top_logprobs",
    "messages": "send them as input",
    "functions": "send them as tools, which OpenAI has in their place",
    "function_call": "send tools and tool_choice",
    "ebnf": "send structured_outputs.grammar",
    "grammar": "send structured_outputs.grammar",
    "json_schema": "send response_format",
    "n_predict": "send max_tokens",
    "n_probs": "send logprobs",
    "no_stop_trim": "send include_stop_str_in_output",
    "regex": "send structured_outputs.regex",
    "repeat_penalty": "send repetition_penalty",
    "best_of": "ask for n completions with logprobs, and take the likeliest",
    "use_beam_search": "ask for n completions with logprobs, and take the likeliest",
}

_PLACE = re.compile(r"(?P<what>.*?) - at (?P<key>`key` in )?`\$\.?(?P<path>.*)`", re.DOTALL)


def read_body(kind: type[T]) -> T:
    """The request's body as `kind`; fields it does not have are ignored.

    Raises: RequestError naming the field; RequestTooLarge; both with the value or limit.
    """
    data = _read()
    try:
        value = msgspec.json.decode(data, type=kind)
        if b"\\u0000" in data:
            _refuse_unusable_text(data)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # the second: in what no struct reads
        raise _wrong_json(data, str(error)) from error
    except RecursionError:
        raise RequestError("the body is nested too deeply; give flat JSON") from None
    return value


def refuse_unsupported(neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse fields that peers carry out and we do not, unless they have a value that changes nothing.

    Args:
        neutral: field name → the values that are accepted; null always is.

    Raises: UnsupportedParameter naming field and value.
    """
    try:
        given = msgspec.json.decode(_read(), type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:  # in a name that no struct has, which was only skipped before
        raise _wrong_json(_read(), str(error)) from error
    for name in given.keys() & neutral.keys():
        if not _changes_nothing(given[name], neutral[name]):
            text = bytes(given[name]).decode("utf-8", "replace")
            shown = text if len(text) <= 80 else text[:77] + "..."
            raise UnsupportedParameter(
                f"{name} is {shown}; this version does not carry it out: {INSTEAD.get(name, 'leave it out')}",
                param=name,
            )


def _changes_nothing(given: msgspec.Raw, neutral: tuple[object, ...]) -> bool:
    try:
        value = msgspec.json.decode(given)
    except msgspec.ValidationError:  # of no type, so: a number that Python's do not reach
        return False
    return value is None or any(_is_same(value, one) for one in neutral)


def _is_same(value: object, neutral: object) -> bool:
    """1 and 1.0 are the same, 1 and true are not."""
    return value == neutral and isinstance(value, bool) is isinstance(neutral, bool)


def _read() -> bytes:
    coding = request.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise RequestError(
            f"the body is encoded as {coding[:80]}; send it as it is", param="Content-Encoding"
        )
    try:
        return request.get_data(cache=True).removeprefix(codecs.BOM_UTF8)  # as editors on Windows write it
    except ParseException as error:  # a chunked body is parsed as it is read
        raise RequestError(f"the chunked body is malformed: {error}") from error
    except RequestEntityTooLarge:
        size = request.content_length
        given = f"{size} bytes" if size is not None else "more"
        raise RequestTooLarge(f"the body has {given}; at most {MAX_BODY_BYTES} bytes are read") from None


def _wrong_field(text: str) -> RequestError:
    """Msgspec says "Expected `int`, got `str` - at `$.max_tokens`", or the missing field's name."""
    place = _PLACE.fullmatch(text)
    what, path = (place["what"], place["path"]) if place else (text, "")
    missing = re.fullmatch(r"Object missing required field `(.+)`", what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError(f"{path} is missing; it is required", param=path)
    what = what.replace("`", "")
    if "RFC3339" in what:
        what += "; write day, time and zone, as 2030-01-31T00:00:00Z"
    if not path:
        return RequestError(f"the body is wrong: {what[0].lower()}{what[1:]}")
    where = f"a key of {path}" if place and place["key"] else path
    return RequestError(f"{where} is wrong: {what[0].lower()}{what[1:]}", param=path)


def _wrong_json(data: bytes, text: str) -> RequestError:
    """Name the field whose text is no Unicode; the strict decoder only says that there is one."""
    with contextlib.suppress(ValueError, RecursionError):
        _refuse_unusable_text(data)
    if not data.strip():
        return RequestError("the body is empty; send a JSON object")
    return RequestError(f"the body is no valid JSON: {text}")


def _refuse_unusable_text(data: bytes) -> None:
    """Raises: RequestError naming the field that holds a NUL or half a surrogate; ValueError: no JSON."""
    for path, text in _texts(json.loads(data, parse_int=float), ""):  # int() refuses 5000 digits
        if "\0" in text:
            raise RequestError(f"{path} contains a NUL character; remove it", param=path)
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise RequestError(f"{path} contains half a surrogate pair; send whole characters", param=path)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            name = f"{path}.{key}" if path else key
            yield name, key
            yield from _texts(item, name)
