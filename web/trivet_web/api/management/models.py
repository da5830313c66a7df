"""/platform/v1/models: register files, list, forget."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
from flask import Blueprint, Response
from sqlalchemy.orm import Session

from trivet.errors import ModelNotFound
from trivet.models.model_files import ModelFiles
from trivet_registry.digests import digests_of
from trivet_registry.model_store.keeping import copy_into, open_stored, register_stored
from trivet_registry.models_store import list_models, register_model, remove_model
from trivet_registry.references import Chosen, choose, find_model
from trivet_web.accounts.acts import record
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import (
    Listing,
    ModelObject,
    VersionObject,
    model_object,
    version_object,
)
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.models.servable import check_passed_on, given_path, is_path, open_new
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("management_models", __name__, url_prefix="/platform/v1/models")


class RegisterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A folder or GGUF file on the server's host."""

    path: str
    name: str | None = None
    verify: bool = True  # read all files through and remember their SHA-256; else `models verify` does
    copy: bool = False  # into the site's store; else they are used where they lie


@blueprint.get("")
@requires(Right.READ)
@documented(Listing[ModelObject])
def list_all() -> Response:
    """Registered models with their versions."""
    with web_process().database.reading() as session:
        return json_response(Listing([model_object(row) for row in list_models(session)]))


@blueprint.post("")
@requires(Right.OPERATE)
@documented(VersionObject, body=RegisterRequest, status=201)
def register() -> Response:
    """Raises: RequestError, ModelFilesError."""
    body = read_body(RegisterRequest)
    process = web_process()
    files = open_new(given_path(body.path, "path", process.settings), process.plugins)
    with process.store.adding() if body.copy else nullcontext():
        row = _registered(process, files, body)
        return json_response(row, 201)


def _registered(process: WebProcess, files: ModelFiles, body: RegisterRequest) -> VersionObject:
    if body.copy:
        digests = copy_into(
            process.store, files, check=lambda place: check_passed_on(place, process.settings)
        )
        stored = open_stored(process.store, digests, process.open_new)
    else:
        known = digests_of(files) if body.verify else None
    with process.database.session() as session:
        if body.copy:
            row = register_stored(session, stored, digests, body.name or files.name, f"file:{files.path}")
        else:
            row = register_model(session, files, body.name, digests=known)
        session.flush()
        record(session, "model.add", row.reference, after={"path": row.path})
        return version_object(row)


@blueprint.get("/<name>")
@requires(Right.READ)
@documented(ModelObject)
def get(name: str) -> Response:
    """One model with its versions. Raises: ModelNotFound listing what exists."""
    with web_process().database.reading() as session:
        return json_response(model_object(find_model(session, name)))


@blueprint.delete("/<name>")
@requires(Right.OPERATE)
@documented(status=204)
def remove(name: str) -> Response:
    """Raises: ModelNotFound; Conflict while it is deployed."""
    with web_process().database.session() as session:
        remove_model(session, name)
        record(session, "model.remove", name)
    return Response(status=204)


def open_named(process: WebProcess, reference: str) -> ModelFiles | None:
    """The files of MODEL where it is a path. Call it before a transaction: a disk may be slow.

    They are not read through here: a launch need not wait for that. Raises: ModelFilesError; RequestError.
    """
    if not is_path(reference):
        return None
    return open_new(given_path(reference, "model", process.settings), process.plugins)


def resolve_model(session: Session, reference: str, files: ModelFiles | None) -> Chosen:
    """The version that MODEL (name, name:version, name:alias, folder, GGUF path) means; a path is registered.

    Args: files: what `open_named` has said of it.

    Raises: ModelNotFound listing what is registered.
    """
    if files is not None:
        return Chosen(register_model(session, files))
    try:
        return choose(session, reference)
    except ModelNotFound as error:
        hint = f"{error}; or give the whole path of a folder or GGUF file"
        raise ModelNotFound(hint, param="model") from None
