"""GET /platform/v1/model-files: what lies on the server's host and could be registered."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response
from sqlalchemy import select

from trivet_registry.tables import Version
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import Listing
from trivet_web.json_response import json_response
from trivet_web.models.found_files import find_model_files
from trivet_web.web_process import web_process

blueprint = Blueprint("model_files", __name__, url_prefix="/platform/v1")


class FoundFilesObject(msgspec.Struct, frozen=True):
    """`name` is a proposal; whether it can be served is seen when it is registered."""

    path: str
    name: str
    size_bytes: int
    is_registered: bool


@blueprint.get("/model-files")
@requires(Right.OPERATE)
@documented(Listing[FoundFilesObject])
def found() -> Response:
    """In the folders of `model_roots`, or in the usual ones: at most 100, looked for at most 3 s."""
    process = web_process()
    with process.database.reading() as session:
        registered = set(session.scalars(select(Version.path)))
    return json_response(
        Listing(
            [
                FoundFilesObject(str(one.path), one.name, one.size_bytes, str(one.path) in registered)
                for one in find_model_files(process.settings)
            ]
        )
    )
