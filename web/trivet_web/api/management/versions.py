"""/platform/v1/versions: what the registry knows of each set of model files."""

from __future__ import annotations

from flask import Blueprint, Response, request

from trivet_registry.models_store import list_models
from trivet_registry.references import find_model, find_version
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import (
    Listing,
    VersionDetails,
    VersionObject,
    version_details,
    version_object,
)
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("management_versions", __name__, url_prefix="/platform/v1/versions")


@blueprint.get("")
@requires(Right.READ)
@documented(Listing[VersionObject], query={"model": str})
def list_all() -> Response:
    """Of one model, or of all. Raises: ModelNotFound."""
    name = request.args.get("model")
    with web_process().database.reading() as session:
        models = [find_model(session, name)] if name else list_models(session)
        return json_response(Listing([version_object(row) for model in models for row in model.versions]))


@blueprint.get("/<reference>")
@requires(Right.READ)
@documented(VersionDetails)
def get(reference: str) -> Response:
    """One version, named "model", "model:3" or "model:prod", with its files. Raises: ModelNotFound."""
    with web_process().database.reading() as session:
        return json_response(version_details(find_version(session, reference)))
