"""/platform/v1/bundles: signed files of models for sites without a network. (They are taken in by a pull.)"""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response

from trivet.errors import RequestError
from trivet_web.accounts.long_acts import recorded
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import Listing
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.models.pulling import keys_folder
from trivet_web.models.servable import check_passed_on, given_path
from trivet_web.web_process import web_process

blueprint = Blueprint("bundles", __name__, url_prefix="/platform/v1")


class ExportRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`path` is a file of the server's host, which must not exist."""

    version: str
    path: str
    have: list[str] = []  # SHA-256 of files that the other site has, which are left out


class BundleObject(msgspec.Struct, frozen=True):
    """A bundle that was made."""

    path: str
    version: str
    key: str  # fingerprint of the key that signed it
    size_bytes: int
    num_files: int


@blueprint.post("/bundles")
@requires(Right.OPERATE)
@documented(BundleObject, body=ExportRequest, status=201)
def export() -> Response:
    """Write a signed bundle of a version. Raises: ModelNotFound, ModelFilesError, Conflict, RequestError."""
    from trivet_registry.bundles.exporting import export_version  # by the first bundle: it loads a library
    from trivet_registry.bundles.signing import own_key

    body = read_body(ExportRequest)
    process = web_process()
    path = given_path(body.path, "path", process.settings, is_new=True)
    if not path.parent.is_dir():
        raise RequestError(f"path {body.path!r} is in no folder; make {path.parent} first", param="path")
    key = own_key(keys_folder(process.settings))
    wanted = {"path": str(path), "left_out": len(body.have)}
    with recorded(process.database, "model.export", body.version, wanted) as outcome:
        made = export_version(
            process.database,
            body.version,
            path,
            key,
            frozenset(body.have),
            lambda place: check_passed_on(place, process.settings),
        )
        outcome |= {"version": made.version, "path": str(path), "files": made.num_files}
    answer = BundleObject(str(made.path), made.version, made.key, made.size_bytes, made.num_files)
    return json_response(answer, 201)


@blueprint.get("/store/digests")
@requires(Right.READ)
@documented(Listing[str])
def digests() -> Response:
    """SHA-256 of all files in the store: what a bundle for this site may leave out."""
    return json_response(Listing(web_process().store.digests()))
