"""/platform/v1/pulls: models that come from a source, how far they are, and their end."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from flask import Blueprint, Response, request
from sqlalchemy.orm import Session

from trivet.errors import ConfigError, RequestError
from trivet_registry import tables
from trivet_registry.audit_log import Act
from trivet_registry.pulls_store import end_lost, get_pull, has_lost, list_pulls
from trivet_registry.references import check_name
from trivet_web.accounts.acts import record
from trivet_web.accounts.principal import principal_of_request
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.objects import Listing
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.models.pulling import keys_folder
from trivet_web.models.servable import given_path
from trivet_web.request_name import request_id
from trivet_web.web_process import WebProcess, web_process

if TYPE_CHECKING:
    from trivet_registry.bundles.importing import Import
    from trivet_registry.sources.pull import Wanted

blueprint = Blueprint("pulls", __name__, url_prefix="/platform/v1/pulls")


class PullRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`source`: hf:org/name[@revision][:FILE], ms:org/name[...], trivet:URL/name[:version], bundle:PATH."""

    source: str
    name: str | None = None  # to register it under; null: the source's own
    key: str | None = None  # a token of the source; it is kept nowhere
    trusted_key: str | None = None  # of a bundle: a public key (PEM) beside those that the site trusts
    allow_older: bool = False  # of a bundle: also where a newer one was taken in
    smoke_test: bool = True  # of a bundle: it must answer one token


class PullObject(msgspec.Struct, frozen=True):
    """One pull; `state` is running, done, failed or cancelled."""

    id: str
    source: str
    name: str | None
    state: str
    message: str
    done_bytes: int
    total_bytes: int  # 0 until it is known
    version: str | None  # what was registered
    created_at: datetime
    ended_at: datetime | None


@blueprint.get("")
@requires(Right.READ)
@documented(Listing[PullObject])
def list_all() -> Response:
    """The newest first."""
    process = web_process()
    _end_lost(process)
    with process.database.reading() as session:
        return json_response(Listing([_object(row) for row in list_pulls(session)]))


@blueprint.post("")
@requires(Right.OPERATE)
@documented(PullObject, body=PullRequest, status=201)
def start() -> Response:
    """Begin; ask for it by its id to see how far it is. Raises: RequestError."""
    body = read_body(PullRequest)
    process = web_process()
    if body.name is not None:
        check_name(body.name, "model")
    wanted = _wanted(process, body)
    after = {"name": body.name, **_given_rights(body)}
    who, address, asked = principal_of_request().name, request.remote_addr or "", request_id()

    def begun(session: Session, pull_id: str) -> Act:
        record(session, "model.pull", body.source, after={**after, "pull": pull_id})
        return Act(who, "model.pull", body.source, address=address, request_id=asked)

    pull_id = process.puller.start(wanted, begun)
    with process.database.reading() as session:
        return json_response(_object(get_pull(session, pull_id)), 201)


@blueprint.get("/<pull_id>")
@requires(Right.READ)
@documented(PullObject)
def get(pull_id: str) -> Response:
    """Raises: NotFound."""
    process = web_process()
    _end_lost(process)
    with process.database.reading() as session:
        return json_response(_object(get_pull(session, pull_id)))


@blueprint.delete("/<pull_id>")
@requires(Right.OPERATE)
@documented(PullObject)
def cancel(pull_id: str) -> Response:
    """End it; what has come stays for the next pull of it. Raises: NotFound."""
    with web_process().database.session() as session:
        row = get_pull(session, pull_id)
        row.is_cancelled = True
        record(session, "model.pull.cancel", row.source, after={"pull": pull_id})
        return json_response(_object(row))


def _end_lost(process: WebProcess) -> None:
    """Of those whose process has ended; nothing is written where there is none."""
    with process.database.reading() as session:
        if not has_lost(session, process.puller.folder):
            return
    with process.database.session() as session:
        end_lost(session, process.puller.folder)


def _wanted(process: WebProcess, body: PullRequest) -> Wanted | Import:
    from trivet_registry.bundles.importing import Import  # by the first pull (models/pulling.py)
    from trivet_registry.sources.pull import Wanted
    from trivet_registry.sources.trivet_site import refuse_password

    kind, _, rest = body.source.partition(":")
    if kind == "trivet":
        refuse_password(rest)
    if kind != "bundle":
        return Wanted(body.source, body.name, body.key)
    return Import(
        given_path(rest, "source", process.settings),
        keys_folder(process.settings),
        body.name,
        body.trusted_key,
        body.allow_older,
        body.smoke_test,
    )


def _given_rights(body: PullRequest) -> dict[str, object]:
    """What a bundle was excused from; a key by its fingerprint. Raises: RequestError for one that is none."""
    if not body.source.startswith("bundle:"):
        return {}
    found: dict[str, object] = {"allow_older": body.allow_older, "smoke_test": body.smoke_test}
    if body.trusted_key is not None:
        from trivet_registry.bundles.signing import fingerprint, read_public

        try:
            found["trusted_key"] = fingerprint(read_public(body.trusted_key.encode(), "trusted_key"))
        except ConfigError as error:
            raise RequestError(str(error), param="trusted_key") from error
    return found


def _object(row: tables.Pull) -> PullObject:
    return PullObject(**{name: getattr(row, name) for name in PullObject.__struct_fields__})
