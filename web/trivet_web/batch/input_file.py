"""The input of a batch, read line by line; what has to be known of all lines takes 24 bytes each.

Two forms, one a file: OpenAI's batch lines ({"custom_id", "method", "url", "body"}) and simple ones
({"prompt"} or {"messages"}). The first line that is a JSON object decides.
"""

from __future__ import annotations

import codecs
import hashlib
from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from trivet.errors import ConfigError, RequestError

MAX_LINE_BYTES = (8 << 20) + (64 << 10)  # a request body at its limit, and the line around it
ABSENT = msgspec.Raw()  # a field that a line does not have
_PIECE_BYTES = 1 << 20


class FormName(StrEnum):
    """How the lines of a file are written."""

    BATCH = "batch"
    SIMPLE = "simple"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not blank."""

    index: int  # from 0, of those that are not blank
    number: int  # from 1, of all
    data: bytes | None  # None: longer than MAX_LINE_BYTES


@dataclass(frozen=True, slots=True)
class InputFile:
    """What one pass over the file has told."""

    path: Path
    form: FormName
    num_lines: int  # that are not blank
    size_bytes: int
    sha256: str


class _Head(msgspec.Struct):
    """What tells the forms apart, and what names a line."""

    custom_id: msgspec.Raw = ABSENT
    method: msgspec.Raw = ABSENT
    url: msgspec.Raw = ABSENT
    body: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT


def scan(path: Path) -> InputFile:
    """Raises: ConfigError where it cannot be read; RequestError where two lines have the same id."""
    digest = hashlib.sha256()
    form: FormName | None = None
    names, numbers = array("Q"), array("Q")
    count = size = 0

    def see(data: bytes) -> None:
        nonlocal size
        size += len(data)
        digest.update(data)

    with _opened(path) as stream:
        for line in _lines(stream, see):
            count += 1
            head = _head(line)
            if head is None:
                continue
            form = form or _form(head)
            names.append(_hashed(_name(head, form, line.index)))
            numbers.append(line.number)
    _refuse_duplicates(path, names, numbers)
    return InputFile(path, form or FormName.SIMPLE, count, size, digest.hexdigest())


def read_lines(path: Path) -> Generator[InputLine, None, None]:
    """Raises: ConfigError where it cannot be read."""
    with _opened(path) as stream:
        yield from _lines(stream)


def sha256_of_start(path: Path, size_bytes: int) -> str:
    """Of the file's first bytes. Raises: ConfigError."""
    digest = hashlib.sha256()
    with _opened(path) as stream:
        while size_bytes > 0 and (data := stream.read(min(size_bytes, _PIECE_BYTES))):
            digest.update(data)
            size_bytes -= len(data)
    return digest.hexdigest()


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"-i {path}: {error.strerror}") from error


def _lines(stream: IO[bytes], see: Callable[[bytes], None] = lambda data: None) -> Iterator[InputLine]:
    index = number = 0
    while data := stream.readline(MAX_LINE_BYTES):
        see(data)
        if number == 0:  # some editors begin a file with a mark, which JSON does not know
            data = data.removeprefix(codecs.BOM_UTF8)
        number += 1
        is_too_long = False
        while not data.endswith(b"\n") and (more := stream.readline(MAX_LINE_BYTES)):
            see(more)
            is_too_long, data = True, more
        if is_too_long or data.strip():
            yield InputLine(index, number, None if is_too_long else data.strip())
            index += 1


def _head(line: InputLine) -> _Head | None:
    """None for what is no JSON object: such a line gets an error in its place."""
    try:
        return None if line.data is None else msgspec.json.decode(line.data, type=_Head)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _form(head: _Head) -> FormName:
    parts = (head.custom_id, head.method, head.url, head.body)
    return FormName.BATCH if any(map(bytes, parts)) else FormName.SIMPLE


def _name(head: _Head, form: FormName, index: int) -> bytes:
    """What the line's result is found by, as JSON; a simple line without an id is found by its index."""
    given = bytes(head.custom_id if form is FormName.BATCH else head.id)
    if given in (b"", b"null"):
        return b"%d" % index if form is FormName.SIMPLE else b"line %d" % index
    return given


def _hashed(name: bytes) -> int:
    """64 bits: among a million lines two are confused once in 40 million files."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def _refuse_duplicates(path: Path, names: array[int], numbers: array[int]) -> None:
    hashes = np.frombuffer(names, np.uint64) if names else np.empty(0, np.uint64)
    order = np.argsort(hashes, kind="stable")
    twins = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if twins.size:
        first, second = (numbers[int(order[twins[0] + i])] for i in (0, 1))
        raise RequestError(
            f"{path}: lines {first} and {second} have the same id, and {twins.size} lines in all repeat one; "
            "the id is what a result is found by: give each line its own"
        )
