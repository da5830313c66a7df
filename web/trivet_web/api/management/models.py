"""/platform/v1/models: register files, list, forget."""

from __future__ import annotations

from pathlib import Path

import msgspec
from flask import Blueprint, Response
from sqlalchemy.orm import Session

from trivet.errors import ModelNotFound, RequestError
from trivet.models.model_files import ModelFiles, open_model
from trivet.text.tokenizer_files import require_tokenizer
from trivet_registry.digests import digests_of
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
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("management_models", __name__, url_prefix="/platform/v1/models")


class RegisterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A folder or GGUF file on the server's host."""

    path: str
    name: str | None = None
    verify: bool = True  # read all files through and remember their SHA-256; else `models verify` does


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
    files = open_servable(process, body.path, "path")
    digests = digests_of(files) if body.verify else None
    with process.database.session() as session:
        row = register_model(session, files, body.name, digests=digests)
        session.flush()
        record(session, "model.add", row.reference, after={"path": row.path})
        return json_response(version_object(row), 201)


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


def absolute_path(text: str, param: str) -> Path:
    """Raises: RequestError: the server has another working directory than who asks."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise RequestError(f"{param} {text!r} names an account that does not exist", param=param) from None
    if not path.is_absolute():
        raise RequestError(f"{param} {text!r} is not absolute; give the whole path", param=param)
    return path


def resolve_model(process: WebProcess, session: Session, reference: str) -> Chosen:
    """The version that MODEL (name, name:version, name:alias, folder, GGUF path) means; a path is registered.

    The files of a path are not read through here: a launch need not wait for that.

    Raises: ModelNotFound listing what is registered; ModelFilesError; RequestError.
    """
    if "/" not in reference and not reference.startswith("~"):
        try:
            return choose(session, reference)
        except ModelNotFound as error:
            hint = f"{error}; or give the whole path of a folder or GGUF file"
            raise ModelNotFound(hint, param="model") from None
    return Chosen(register_model(session, open_servable(process, reference, "model")))


def open_servable(process: WebProcess, text: str, param: str) -> ModelFiles:
    """Files that an engine can serve. Raises: ModelFilesError; RequestError."""
    files = open_model(absolute_path(text, param), process.plugins)
    require_tokenizer(files.path, files.config)
    return files
