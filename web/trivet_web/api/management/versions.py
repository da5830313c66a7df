"""/platform/v1/versions: what the registry knows of each set of model files."""

from __future__ import annotations

from flask import Blueprint, Response, request, send_file

from trivet_registry.model_store.keeping import collect, verify_version
from trivet_registry.models_store import list_models
from trivet_registry.references import find_model, find_version
from trivet_web.accounts.long_acts import recorded
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import (
    Listing,
    ProblemObject,
    StoreObject,
    VerifiedObject,
    VersionDetails,
    VersionObject,
    version_details,
    version_object,
)
from trivet_web.json_response import json_response
from trivet_web.models.registered_files import opened
from trivet_web.web_process import web_process

blueprint = Blueprint("management_versions", __name__, url_prefix="/platform/v1")


@blueprint.get("/versions")
@requires(Right.READ)
@documented(Listing[VersionObject], query={"model": str})
def list_all() -> Response:
    """Of one model, or of all. Raises: ModelNotFound."""
    name = request.args.get("model")
    with web_process().database.reading() as session:
        models = [find_model(session, name)] if name else list_models(session)
        return json_response(Listing([version_object(row) for model in models for row in model.versions]))


@blueprint.get("/versions/<reference>")
@requires(Right.READ)
@documented(VersionDetails)
def get(reference: str) -> Response:
    """One version, named "model", "model:3" or "model:prod", with its files. Raises: ModelNotFound."""
    with web_process().database.reading() as session:
        return json_response(version_details(find_version(session, reference)))


@blueprint.post("/versions/<reference>/verify")
@requires(Right.OPERATE)
@documented(VerifiedObject)
def verify(reference: str) -> Response:
    """Read all files of a version through, and compare. Raises: ModelNotFound."""
    process = web_process()
    with recorded(process.database, "model.verify", reference) as outcome:
        wrong = verify_version(process.database, reference, process.store)
        outcome["wrong"] = sorted(wrong)
    problems = [ProblemObject(name, problem) for name, problem in wrong.items()]
    with process.database.reading() as session:
        version = find_version(session, reference)
        return json_response(VerifiedObject(version.reference, version.digest, problems))


@blueprint.get("/versions/<reference>/files/<path:name>")
@requires(Right.READ)
@documented(media_type="application/octet-stream")
def file(reference: str, name: str) -> Response:
    """One file of a version, or a range of it; not where it has changed. Raises: NotFound, Conflict."""
    process = web_process()
    with process.database.reading() as session:
        version = find_version(session, reference)
        digest = (version.digests or {}).get(name)
    with opened(version, name, process.settings) as handle:
        return send_file(
            f"/proc/self/fd/{handle}",  # the file that was looked at, whatever has its name by now
            mimetype="application/octet-stream",
            etag=digest or False,
            conditional=True,
        )


@blueprint.get("/store")
@requires(Right.READ)
@documented(StoreObject)
def store() -> Response:
    """How much is in the site's store of model files."""
    found = web_process().store.usage()
    return json_response(StoreObject(found.num_files, found.size_bytes))


@blueprint.post("/store/collect")
@requires(Right.OPERATE)
@documented(StoreObject)
def collect_garbage() -> Response:
    """Remove what no version needs; answers what is gone. Raises: Conflict while models are being added."""
    process = web_process()
    with recorded(process.database, "model.collect") as outcome:
        gone = collect(process.database, process.store)
        outcome |= {"files": gone.num_files, "bytes": gone.size_bytes}
    return json_response(StoreObject(gone.num_files, gone.size_bytes))
