"""/platform/v1/deployments: the desired state."""

from __future__ import annotations

from datetime import datetime

import msgspec
from flask import Blueprint, Response, request
from sqlalchemy.orm import Session

from trivet.errors import RequestError
from trivet_registry.deployment_changes import UNCHANGED, Update, update_deployment
from trivet_registry.deployments_store import (
    create_deployment,
    get_deployment,
    list_deployments,
    stop_deployment,
)
from trivet_registry.instance_state import LIVE_STATES
from trivet_registry.instances_store import list_instances
from trivet_registry.tables import Deployment
from trivet_web.accounts.acts import record
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.models import open_named, resolve_model
from trivet_web.api.management.objects import (
    DeploymentObject,
    Listing,
    deployment_object,
    instance_object,
)
from trivet_web.api.request_body import read_body
from trivet_web.json_response import json_response
from trivet_web.models.adapter_folders import check_adapters
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("management_deployments", __name__, url_prefix="/platform/v1/deployments")


class LaunchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to run; `settings` are engine settings by name, as text.

    `backend` is "auto", a name, or names by preference ("ascend,cuda,cpu").
    """

    model: str
    name: str | None = None
    backend: str = "auto"
    device: str | None = None
    replicas: int = 1
    settings: dict[str, str] = {}
    priority: int = 0  # where room is scarce, the lower is placed first
    fallback: str | None = None  # deployment that answers when this one is full or too late


class UpdateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to change; settings are merged, and null takes one back."""

    model: str | None = None
    backend: str | None = None
    device: str | msgspec.UnsetType | None = msgspec.UNSET
    replicas: int | None = None
    settings: dict[str, str | None] = {}
    priority: int | None = None
    fallback: str | msgspec.UnsetType | None = msgspec.UNSET
    if_updated_at: datetime | None = None  # refused where it was changed since: `updated_at` as it was seen


@blueprint.get("")
@requires(Right.READ)
@documented(Listing[DeploymentObject])
def list_all() -> Response:
    """Running and stopped ones."""
    process = web_process()
    with process.database.reading() as session:
        return json_response(Listing([_object(process, session, row) for row in list_deployments(session)]))


@blueprint.post("")
@requires(Right.OPERATE)
@documented(DeploymentObject, body=LaunchRequest, status=201)
def launch() -> Response:
    """Raises: ModelNotFound, ModelFilesError, Conflict, ConfigError, RequestError."""
    body = read_body(LaunchRequest)
    process = web_process()
    check_backend(process, body.backend)
    check_adapters(body.settings, process.settings)
    files = open_named(process, body.model)
    with process.database.session() as session:
        chosen = resolve_model(session, body.model, files)
        row = create_deployment(
            session,
            name=body.name or None,
            version=chosen.version,
            alias=chosen.alias,
            backend=body.backend,
            device=body.device,
            replicas=body.replicas,
            settings=body.settings,
            priority=body.priority,
            fallback=body.fallback or None,
        )
        made = _object(process, session, row)
        record(session, "deployment.launch", row.name, after=deployment_facts(row))
    process.supervisor.wake()
    return json_response(made, 201)


@blueprint.get("/<name>")
@requires(Right.READ)
@documented(DeploymentObject)
def get(name: str) -> Response:
    """Raises: NotFound listing what exists."""
    process = web_process()
    with process.database.reading() as session:
        return json_response(_object(process, session, get_deployment(session, name)))


@blueprint.patch("/<name>")
@requires(Right.OPERATE)
@documented(DeploymentObject, body=UpdateRequest)
def change(name: str) -> Response:
    """Raises: NotFound, Conflict, RequestError, ConfigError, ModelNotFound, ModelFilesError."""
    body = read_body(UpdateRequest)
    process = web_process()
    if body.backend is not None:
        check_backend(process, body.backend)
    check_adapters(body.settings, process.settings)
    files = None if body.model is None else open_named(process, body.model)
    with process.database.session() as session:
        chosen = None if body.model is None else resolve_model(session, body.model, files)
        update = Update(
            version=chosen.version if chosen else None,
            alias=chosen.alias if chosen else None,
            backend=body.backend,
            device=UNCHANGED if body.device is msgspec.UNSET else body.device or None,
            replicas=body.replicas,
            settings=body.settings,
            priority=body.priority,
            fallback=UNCHANGED if body.fallback is msgspec.UNSET else body.fallback or None,
            if_updated_at=body.if_updated_at,
        )
        before = deployment_facts(get_deployment(session, name))
        row = update_deployment(session, name, update)
        changed = _object(process, session, row)
        record(session, "deployment.update", name, before, deployment_facts(row))
    process.supervisor.wake()
    return json_response(changed)


@blueprint.delete("/<name>")
@requires(Right.OPERATE)
@documented(DeploymentObject, query={"drain_timeout_s": float})
def stop(name: str) -> Response:
    """Raises: NotFound, RequestError."""
    process = web_process()
    with process.database.session() as session:
        row = stop_deployment(session, name, _drain_timeout_s())
        stopped = _object(process, session, row)
        record(session, "deployment.stop", name)
    process.supervisor.wake()
    return json_response(stopped)


def _object(process: WebProcess, session: Session, row: Deployment) -> DeploymentObject:
    instances = list_instances(session, deployment=row.name, states=LIVE_STATES)
    return deployment_object(row, [instance_object(i, process.engine_view(i.id)) for i in instances])


def deployment_facts(row: Deployment) -> dict[str, object]:
    """What the audit log keeps of a deployment."""
    return {
        "model": f"{row.version.name}:{row.version.version}",
        "backend": row.backend,
        "device": row.device,
        "replicas": row.replicas,
        "settings": dict(row.settings),
        "priority": row.priority,
        "fallback": row.fallback,
    }


def check_backend(process: WebProcess, names: str) -> None:
    """Raises: Unsupported naming the backends that exist, where none of those by preference does."""
    listed = names.split(",")
    if listed == ["auto"] or any(name in process.plugins.backends for name in listed):
        return
    process.plugins.backend(listed[0])


def _drain_timeout_s() -> float | None:
    """Raises: RequestError."""
    text = request.args.get("drain_timeout_s")
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise RequestError(
            f"drain_timeout_s is {text!r}; it is seconds, 0 or more", param="drain_timeout_s"
        ) from None
