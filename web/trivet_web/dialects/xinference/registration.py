"""/v1/model_registrations: files that may be launched by name."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from flask import Blueprint, Response
from sqlalchemy.orm import Session

from trivet.errors import ModelNotFound, RequestError, UnsupportedParameter
from trivet_registry.models_store import list_models, register_model, remove_model
from trivet_registry.tables import Model
from trivet_web.accounts.acts import record
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.accounts.site_accounts import site_accounts
from trivet_web.api.documented import documented
from trivet_web.api.request_body import read_body
from trivet_web.dialects.xinference.objects import (
    ModelRegistration,
    ModelSpecObject,
    RegisteredModel,
)
from trivet_web.json_response import json_response
from trivet_web.models.servable import given_path, open_new
from trivet_web.models.visible_models import visible
from trivet_web.web_process import web_process

blueprint = Blueprint("xinference_registration", __name__)
_PLACE = "/v1/model_registrations/<model_type>"


class RegistrationRequest(msgspec.Struct, kw_only=True):
    """`model` is JSON text."""

    model: str
    persist: bool | None = None
    worker_ip: str | None = None


class SpecFields(msgspec.Struct, kw_only=True):
    """Where the files are."""

    model_uri: str | None = None


class ModelFields(msgspec.Struct, kw_only=True):
    """What is read of `model`: the rest is in the files."""

    model_name: str
    model_specs: list[SpecFields] = []
    model_uri: str | None = None


@blueprint.get(_PLACE)
@requires(Right.INFER)
@documented(list[RegisteredModel], query={"detailed": bool})
def list_all(model_type: str) -> Response:
    """All that are registered, whatever the type: each model serves each use."""
    with web_process().database.reading() as session:
        return json_response([RegisteredModel(model.name, False) for model in _visible(session)])


@blueprint.post(_PLACE)
@requires(Right.OPERATE)
@documented(dict[str, Any], body=RegistrationRequest)
def register(model_type: str) -> Response:
    """Register files of the server's host. Raises: RequestError, ModelFilesError."""
    body = read_body(RegistrationRequest)
    try:
        model = msgspec.json.decode(body.model, type=ModelFields)
    except msgspec.DecodeError as error:
        raise RequestError(f"model is wrong: {str(error).replace('`', '')}", param="model") from error
    uris = [uri for uri in (model.model_uri, *(spec.model_uri for spec in model.model_specs)) if uri]
    if not uris:
        raise RequestError(
            "model has no model_uri, and this server downloads nothing; say in model_specs where "
            "the files are",
            param="model",
        )
    process = web_process()
    paths = [given_path(_path_of(uri), "model_uri", process.settings) for uri in uris]
    files = [open_new(path, process.plugins) for path in paths]
    with process.database.session() as session:
        for one in files:
            register_model(session, one, model.model_name)
        record(session, "model.add", model.model_name, after={"paths": [str(one.path) for one in files]})
    return json_response({})


@blueprint.get(f"{_PLACE}/<model_name>")
@requires(Right.INFER)
@documented(ModelRegistration)
def get(model_type: str, model_name: str) -> Response:
    """One model with its versions. Raises: ModelNotFound."""
    with web_process().database.reading() as session:
        model = _find(session, model_name)
        shows_paths = _may_see_paths()
        specs = [
            ModelSpecObject(
                f"file://{v.path}" if shows_paths else "", v.format, v.quantization or "none", v.version
            )
            for v in model.versions
        ]
        length = max(version.context_length for version in model.versions)
        return json_response(ModelRegistration(model.name, False, length, specs))


@blueprint.delete(f"{_PLACE}/<model_name>")
@requires(Right.OPERATE)
@documented(dict[str, Any])
def unregister(model_type: str, model_name: str) -> Response:
    """Forget it; its files stay. Raises: ModelNotFound, Conflict while it is deployed."""
    with web_process().database.session() as session:
        remove_model(session, model_name)
        record(session, "model.remove", model_name)
    return json_response({})


def _visible(session: Session) -> list[Model]:
    """Who has a key for some deployments sees what these serve."""
    models = list_models(session)
    if principal_of_request().models is None:
        return list(models)
    served = visible(web_process().router.table(fresh=True)).values()
    names = {one.facts.name for one in served if one.facts is not None}
    return [model for model in models if model.name in names]


def _may_see_paths() -> bool:
    """Where files lie is for who may see the site; on one without users, that is anyone."""
    return Right.READ in principal_of_request().rights or site_accounts().is_open()


def _find(session: Session, name: str) -> Model:
    """Raises: ModelNotFound listing what is registered."""
    models = {model.name: model for model in _visible(session)}
    if name not in models:
        known = ", ".join(models) or "none"
        raise ModelNotFound(
            f"model {name[:200]!r} is not registered; registered: {known}", param="model_name"
        )
    return models[name]


def _path_of(uri: str) -> str:
    """Raises: UnsupportedParameter for what is not on this host."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file") or parts.netloc:
        raise UnsupportedParameter(
            f"model_uri is {uri[:200]!r}; this server downloads nothing: give file:///PATH", param="model_uri"
        )
    return unquote(parts.path) if parts.scheme else uri
