"""/v1/files: the inputs and results of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import msgspec
from flask import Blueprint, Response, request, send_file

from trivet.errors import Conflict, NotFound, RequestError, RequestTooLarge, UnsupportedParameter
from trivet_web.accounts.ownership import is_ones_own, owner_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.pages import QUERY, page_of_request
from trivet_web.api.request_body import MAX_BODY_BYTES
from trivet_web.api.upload_form import received_form
from trivet_web.batch.stored_batch import FileObject
from trivet_web.json_response import json_response
from trivet_web.stored_objects import new_id
from trivet_web.web_process import web_process

blueprint = Blueprint("files", __name__)
MAX_FILE_BYTES = 200 << 20  # OpenAI's for a batch
MAX_OWNED_BYTES = 20 << 30  # of all files of one user, results of batches included
MAX_LIMIT = 10_000  # of a page, and where none is asked for; OpenAI's
PURPOSE = "batch"


class FileUpload(msgspec.Struct, kw_only=True):
    """A form of multipart/form-data."""

    purpose: str
    file: bytes


class FileList(msgspec.Struct, frozen=True):
    """A page of those that are kept."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
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
    """Keep a file. Raises: RequestError, RequestTooLarge, Unavailable."""
    shelf, file_id = web_process().shelf, new_id("file")
    _check_owned()
    draft = shelf.content(file_id).with_suffix(".upload")
    with _slot(), received_form(draft, MAX_FILE_BYTES) as form:
        _check_fields(form.fields)
        if form.file is None:
            raise RequestError("file is missing; send it as multipart/form-data", param="file")
        if not form.draft.stat().st_size:
            raise RequestError("file is empty; send OpenAI's batch lines", param="file")
        form.keep(shelf.content(file_id))
        try:
            name = (form.file.filename or "file")[:255]
            made = shelf.new_file(file_id, name, PURPOSE, owner_of_request())
        except BaseException:
            shelf.content(file_id).unlink(missing_ok=True)
            raise
    return json_response(made)


def _own_files() -> list[FileObject]:
    """Newest first."""
    files = web_process().shelf.files
    found = [file for file_id in files.ids() if (file := files.get(file_id)) is not None]
    return [file for file in found if is_ones_own(file.owner)]


def _check_owned() -> None:
    """Raises: RequestTooLarge."""
    owned_bytes = sum(file.bytes for file in _own_files())
    if owned_bytes + (request.content_length or 0) > MAX_OWNED_BYTES:
        raise RequestTooLarge(
            f"your files have {owned_bytes} bytes, and at most {MAX_OWNED_BYTES} are kept for a user; delete "
            "some of them first"
        )


def _check_fields(fields: Mapping[str, str]) -> None:
    """Raises: RequestError."""
    purpose = fields.get("purpose")
    if purpose != PURPOSE:
        given = "missing" if purpose is None else repr(purpose[:80])
        raise RequestError(f"purpose is {given}; it must be {PURPOSE!r}", param="purpose")
    for name in fields:
        if name.partition("[")[0] == "expires_after":
            days = web_process().settings.retention_days
            raise UnsupportedParameter(
                f"{name[:80]} is given; every file here is kept for {days:g} days (retention_days): leave it "
                "out, and delete the file when it is not needed",
                param="expires_after",
            )


@blueprint.get("/v1/files")
@requires(Right.INFER)
@documented(FileList, query={**QUERY, "purpose": str})
def list_files() -> Response:
    """Those that are kept, newest first. Raises: RequestError."""
    purpose = request.args.get("purpose")
    wanted = [file for file in _own_files() if purpose in (None, file.purpose)]
    page = page_of_request(wanted, "your files", MAX_LIMIT, MAX_LIMIT)
    return json_response(FileList(page.data, page.first_id, page.last_id, page.has_more))


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
    """Raises: NotFound; Conflict for the input of a batch that has not ended."""
    known_file(file_id)
    shelf = web_process().shelf
    for batch in shelf.open_batches():
        if batch.input_file_id == file_id:
            raise Conflict(
                f"file {file_id} is the input of batch {batch.id}, which is {shelf.shown(batch).status}; "
                "cancel the batch first, or wait for its end"
            )
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
