"""Models and their immutable versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from trivet.errors import Conflict, ModelNotFound, RequestError
from trivet_registry.events_store import record_event
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.tables import Deployment, Instance, Model, Version

if TYPE_CHECKING:
    from trivet.models.model_files import ModelFiles

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: str, what: str) -> str:
    """A name that is safe in a URL, in a file name and before a colon. Raises: RequestError."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{what} name {name!r} is not usable; use up to 128 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit",
            param="name",
        )
    return name


def register_model(
    session: Session, files: ModelFiles, name: str | None = None, source: str = "local"
) -> Version:
    """The version of these files: an existing one where path, sizes and times are the same.

    Without a name the files' own name is taken, or the name under which they are registered already.
    Raises: RequestError for a name that cannot be used.
    """
    listed = [_describe_file(path) for path in files.files]
    fingerprint = hashlib.sha256(json.dumps([str(files.path), listed]).encode()).hexdigest()
    known = select(Version).where(Version.fingerprint == fingerprint).order_by(Version.id.desc())
    if name is not None:
        known = known.join(Version.model).where(Model.name == check_name(name, "model"))
    existing = session.scalars(known.limit(1)).first()
    if existing is not None:
        return existing
    model = _get_or_create_model(session, check_name(name or _usable_name(files.name), "model"))
    newest = session.scalar(select(func.max(Version.version)).where(Version.model_id == model.id))
    version = Version(
        model=model,
        version=(newest or 0) + 1,
        path=str(files.path),
        format=files.format,
        quantization=files.quantization,
        architecture=files.architecture,
        size_bytes=files.size_bytes,
        context_length=files.context_length,
        licence=files.licence,
        files=listed,
        fingerprint=fingerprint,
        source=source,
    )
    session.add(version)
    session.flush()
    record_event(session, "model", f"registered {model.name}:{version.version} from {files.path}")
    return version


def find_version(session: Session, reference: str) -> Version:
    """The newest version of "name", or the one that "name:version" says.

    Raises: ModelNotFound listing what exists.
    """
    name, colon, number = reference.partition(":")
    query = select(Version).join(Version.model).where(Model.name == name).order_by(Version.version.desc())
    if colon:
        # A version number is compared as text, so that "name:latest" is simply not found.
        versions = [v for v in session.scalars(query) if str(v.version) == number]
    else:
        versions = list(session.scalars(query.limit(1)))
    if versions:
        return versions[0]
    raise ModelNotFound(f"model {reference!r} is not registered; {_existing(session)}", param="model")


def list_models(session: Session) -> Sequence[Model]:
    """All models by name, each with its versions."""
    return session.scalars(select(Model).order_by(Model.name)).all()


def remove_model(session: Session, reference: str) -> None:
    """Forget a model with all its versions ("name") or one version of it ("name:version").

    Stopped deployments of what is removed go with it; files stay where they are.

    Raises: ModelNotFound; Conflict while a deployment wants it or an instance of it lives.
    """
    name, colon, _ = reference.partition(":")
    model = session.scalars(select(Model).where(Model.name == name)).first()
    if model is None:
        raise ModelNotFound(f"model {reference!r} is not registered; {_existing(session)}", param="model")
    going = [find_version(session, reference)] if colon else list(model.versions)
    versions = [version.id for version in going]
    wanted = select(Deployment.name).where(
        Deployment.version_id.in_(versions), Deployment.desired == "running"
    )
    ended = [InstanceState.STOPPED, InstanceState.FAILED]
    living = (
        select(Deployment.name)
        .join(Instance, Instance.deployment_id == Deployment.id)
        .where(Instance.version_id.in_(versions), Instance.state.in_(LIVE_STATES - set(ended)))
    )
    users = sorted({*session.scalars(wanted), *session.scalars(living)})
    if users:
        raise Conflict(
            f"model {reference!r} is used by deployment {', '.join(users)}; stop it first", param="name"
        )
    if len(going) == len(model.versions):
        session.delete(model)
    else:
        for version in going:
            session.delete(version)
    record_event(session, "model", f"removed {reference}")


def _get_or_create_model(session: Session, name: str) -> Model:
    model = session.scalars(select(Model).where(Model.name == name)).first()
    if model is None:
        model = Model(name=name)
        session.add(model)
        session.flush()
    return model


def _describe_file(path: Any) -> dict[str, Any]:
    status = path.stat()
    return {"name": str(path), "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _usable_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:128] or "model"


def _existing(session: Session) -> str:
    names = [
        f"{model.name}:{','.join(str(v.version) for v in model.versions)}" for model in list_models(session)
    ]
    return f"registered: {', '.join(names)}" if names else "no model is registered: trivet models add PATH"
