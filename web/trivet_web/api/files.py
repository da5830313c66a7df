"""/v1/files: the inputs and results of batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from flask import Blueprint, Response, request, send_file
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import RequestEntityTooLarge

from trivet.errors import NotFound, RequestError, RequestTooLarge
from trivet_web.accounts.ownership import is_ones_own, owner_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.request_body import MAX_BODY_BYTES
from trivet_web.batch.stored_batch import FileObject
from trivet_web.json_response import json_response
from trivet_web.stored_objects import new_id
from trivet_web.web_process import web_process

blueprint = Blueprint("files", __name__)
MAX_FILE_BYTES = 200 << 20  # OpenAI's for a batch
PURPOSE = "batch"


class FileUpload(msgspec.Struct, kw_only=True):
    """A form of multipart/form-data."""

    purpose: str
    file: bytes


class FileList(msgspec.Struct, frozen=True):
    """All that are kept, newest first."""

    data: list[FileObject]
    has_more: bool = False
    object: Literal["list"] = "list"


class DeletedFile(msgspec.Struct, frozen=True):
    """It is gone."""

    id: str
    deleted: Literal[True] = True
    object: Literal["file"] = "file"


@blueprint.post("/v1/files")
@requires(Right.INFER)
@documented(FileObject, body=FileUpload, body_media_type="multipart/form-data")
def upload() -> Response:
    """Keep a file. Raises: RequestError, RequestTooLarge."""
    request.max_content_length = MAX_FILE_BYTES
    with _slot():
        try:
            purpose, given = request.form.get("purpose"), request.files.get("file")
        except RequestEntityTooLarge:
            raise RequestTooLarge(
                f"the file has more than {MAX_FILE_BYTES} bytes; send it in parts"
            ) from None
        except ParseException as error:  # a chunked body is parsed as it is read
            raise RequestError(f"the chunked body is malformed: {error}") from error
    if purpose != PURPOSE:
        raise RequestError(f"purpose is {purpose!r:.80}; it must be {PURPOSE!r}", param="purpose")
    if given is None:
        raise RequestError("file is missing; send it as multipart/form-data", param="file")
    shelf, file_id = web_process().shelf, new_id("file")
    content = shelf.content(file_id)
    content.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content.touch(mode=0o600)
    with content.open("wb") as target:
        given.save(target)
    name = (given.filename or "file")[:255]
    return json_response(shelf.new_file(file_id, name, purpose, owner_of_request()))


@blueprint.get("/v1/files")
@requires(Right.INFER)
@documented(FileList, query={"purpose": str})
def list_files() -> Response:
    """All that are kept, newest first."""
    files, purpose = web_process().shelf.files, request.args.get("purpose")
    found = [file for file_id in files.ids() if (file := files.get(file_id)) is not None]
    mine = [file for file in found if is_ones_own(file.owner)]
    return json_response(FileList([file for file in mine if purpose in (None, file.purpose)]))


@blueprint.get("/v1/files/<file_id>")
@requires(Right.INFER)
@documented(FileObject)
def get_file(file_id: str) -> Response:
    """Raises: NotFound."""
    return json_response(known_file(file_id))


@blueprint.get("/v1/files/<file_id>/content")
@requires(Right.INFER)
@documented(media_type="application/octet-stream")
def get_content(file_id: str) -> Response:
    """Raises: NotFound."""
    known_file(file_id)
    return send_file(web_process().shelf.content(file_id), mimetype="application/octet-stream")


@blueprint.delete("/v1/files/<file_id>")
@requires(Right.INFER)
@documented(DeletedFile)
def delete_file(file_id: str) -> Response:
    """Raises: NotFound."""
    known_file(file_id)
    shelf = web_process().shelf
    shelf.files.remove(file_id)
    shelf.content(file_id).unlink(missing_ok=True)
    return json_response(DeletedFile(file_id))


@contextmanager
def _slot() -> Iterator[None]:
    """A large file holds a thread for as long as its client takes. Raises: Overloaded."""
    is_large = (request.content_length or MAX_FILE_BYTES) > MAX_BODY_BYTES
    give_back = web_process().slots.take() if is_large else lambda: None
    try:
        yield
    finally:
        give_back()


def known_file(file_id: str, param: str | None = None) -> FileObject:
    """Raises: NotFound."""
    found = web_process().shelf.files.get(file_id)
    if found is None or not is_ones_own(found.owner):
        days = web_process().settings.retention_days
        raise NotFound(
            f"file {file_id[:80]!r} does not exist: it was never sent, was deleted, or is older than "
            f"{days:g} days (retention_days)",
            param=param,
        )
    return found
