"""A form of multipart/form-data whose file goes to the disk as it comes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flask import request
from gunicorn.http.errors import ParseException
from werkzeug.datastructures import FileStorage
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser

from trivet.errors import RequestError, RequestTooLarge, Unavailable

MAX_FIELD_BYTES = 64 << 10  # of all fields that are no file


@dataclass(frozen=True, slots=True)
class UploadForm:
    """What came."""

    fields: Mapping[str, str]
    file: FileStorage | None
    draft: Path  # of the file's content, until it is moved or the form is left

    def keep(self, place: Path) -> None:
        """The content, whole and on the disk, at this place. Raises: OSError."""
        with self.draft.open("rb") as content:
            os.fsync(content.fileno())
        self.draft.replace(place)


@contextmanager
def received_form(draft: Path, max_bytes: int) -> Iterator[UploadForm]:
    """Read the request's body; the draft is gone after the block.

    Args: max_bytes: of the whole body.

    Raises: RequestError, RequestTooLarge; Unavailable where the disk does not take it.
    """
    opened: list[IO[bytes]] = []

    def open_draft(*_: object, **__: object) -> IO[bytes]:
        """The first file is the one that is kept; another has no name any more."""
        place = draft if not opened else draft.with_suffix(f".{len(opened)}")
        place.touch(mode=0o600)
        opened.append(place.open("w+b"))
        if place != draft:
            place.unlink()
        return opened[-1]

    try:
        draft.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        form = _parsed(FormDataParser(open_draft, MAX_FIELD_BYTES), max_bytes)
        for file in opened:
            file.flush()
        yield UploadForm(form[0], form[1], draft)
    except OSError as error:
        raise Unavailable(
            f"the file cannot be kept: {error.strerror}; make room and send it again"
        ) from error
    finally:
        for file in opened:
            with suppress(OSError):  # what is left in its buffer
                file.close()
        draft.unlink(missing_ok=True)


def _parsed(parser: FormDataParser, max_bytes: int) -> tuple[Mapping[str, str], FileStorage | None]:
    """Raises: RequestError, RequestTooLarge, OSError."""
    request.max_content_length = max_bytes
    too_large = RequestTooLarge(f"the file has more than {max_bytes} bytes; send it in parts")
    try:
        stream = request.stream
    except RequestEntityTooLarge:
        raise too_large from None
    try:
        _, fields, files = parser.parse(
            stream, request.mimetype, request.content_length, request.mimetype_params
        )
    except RequestEntityTooLarge:
        if stream.tell() >= max_bytes:  # of a chunked body, whose size was not told
            raise too_large from None
        raise RequestTooLarge(
            f"the form's fields beside the file have more than {MAX_FIELD_BYTES} bytes; shorten them"
        ) from None
    except ParseException as error:  # a chunked body is parsed as it is read
        raise RequestError(f"the chunked body is malformed: {error}") from error
    return fields, files.get("file")
