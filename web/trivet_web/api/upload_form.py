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
from trivet_web.stored_objects import check_room

MAX_FIELD_BYTES = 128 << 10  # of all fields that are no file; the parser counts the 64 KiB of a read, too
MAX_PARTS = 16  # each file among them is an open descriptor until the form has come


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
    opened: list[tuple[IO[bytes], Path]] = []

    def open_draft(*_: object, **__: object) -> IO[bytes]:
        place = draft if not opened else draft.with_suffix(f".{len(opened)}{draft.suffix}")
        place.touch(mode=0o600)
        opened.append((place.open("w+b"), place))
        return opened[-1][0]

    try:
        draft.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_room(draft.parent, request.content_length or 0)
        parser = FormDataParser(open_draft, MAX_FIELD_BYTES, max_form_parts=MAX_PARTS)
        fields, sent = _parsed(parser, max_bytes)
        for file, _ in opened:
            file.flush()
        kept = [place for file, place in opened if sent is not None and file is sent.stream]
        yield UploadForm(fields, sent, kept[0] if kept else draft)
    except OSError as error:
        raise Unavailable(
            f"the file cannot be kept: {error.strerror}; make room and send it again"
        ) from error
    finally:
        for file, place in opened:
            with suppress(OSError):  # what is left in its buffer
                file.close()
            place.unlink(missing_ok=True)


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
            f"the form has more than {MAX_PARTS} parts, or its fields beside the file more than "
            f"{MAX_FIELD_BYTES} bytes; send the file and what belongs to it alone"
        ) from None
    except ConnectionError as error:
        raise RequestError(f"the upload broke off: {error.strerror}; send it again") from error
    except ParseException as error:  # a chunked body is parsed as it is read
        raise RequestError(f"the chunked body is malformed: {error}") from error
    return fields, files.get("file")
