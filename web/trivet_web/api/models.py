"""GET /v1/models: the deployments that clients may name as `model`."""

from __future__ import annotations

from flask import Blueprint, Response

from trivet_web.api.documented import documented
from trivet_web.api.openai_objects import ModelList, ModelObject
from trivet_web.json_response import json_response
from trivet_web.routing import Deployed
from trivet_web.web_process import web_process

blueprint = Blueprint("models", __name__)


@blueprint.get("/v1/models")
@documented(ModelList)
def list_models() -> Response:
    """All that shall run; `ready` says which answer now."""
    table = web_process().router.table()
    return json_response(ModelList([_object(table[name]) for name in sorted(table)]))


@blueprint.get("/v1/models/<name>")
@documented(ModelObject)
def get_model(name: str) -> Response:
    """Raises: ModelNotFound listing what exists."""
    return json_response(_object(web_process().router.deployed(name)))


def _object(deployed: Deployed) -> ModelObject:
    ready = web_process().router.can_serve(deployed)
    return ModelObject(deployed.name, deployed.created_s, deployed.max_model_len, ready)
