"""Models and their immutable versions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from trivet.errors import Conflict, ModelFilesError
from trivet_registry.digests import content_digest
from trivet_registry.events_store import record_event
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.references import check_name, find_model, find_version
from trivet_registry.served import served_rules
from trivet_registry.tables import Deployment, Instance, Model, Version, VersionNumber
from trivet_registry.version_facts import abilities, spec_summary

if TYPE_CHECKING:
    from trivet.models.model_files import ModelFiles

MAX_ARCHITECTURE = 128  # characters, of its column
MAX_CONTEXT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed the bundle that brought a version, and its number there."""

    key: str  # fingerprint of the public key
    version: int


@dataclass(frozen=True, slots=True)
class _Content:
    """By what files are known again."""

    fingerprint: str
    digest: str | None
    is_stored: bool


def register_model(
    session: Session,
    files: ModelFiles,
    name: str | None = None,
    source: str = "local",
    *,
    digests: Mapping[str, str] | None = None,
    is_stored: bool = False,
    signature: Signature | None = None,
) -> Version:
    """The version of these files, which may be there already.

    It is where path, sizes and times are the same and no digest says otherwise; of a named model also where
    the store has it with the same digests. What is in the store outlasts what lies elsewhere, and so is never
    answered by that.

    Without a name the files' own name is taken, or the name under which they are registered already.

    Args:
        digests: SHA-256 by name in the model's folder (`digests.digests_of`), where they are known.
        is_stored: the files lie in the site's store, which may remove them when no version needs them.

    Raises: RequestError for a name that cannot be used.
    """
    listed = [_describe_file(path) for path in files.files]
    fingerprint = hashlib.sha256(json.dumps([str(files.path), listed]).encode()).hexdigest()
    digest = None if digests is None else content_digest(digests)
    content = _Content(fingerprint, digest, is_stored)
    existing = _existing_version(session, content, name)
    if existing is not None:
        if digests is not None:
            remember_digests(existing, digests)
        if signature is not None and existing.signed_by is None:
            existing.signed_by, existing.signed_version = signature.key, signature.version
        return existing
    model = _get_or_create_model(session, check_name(name or _usable_name(files.name), "model"))
    version = Version(
        **_described(files),
        model=model,
        version=_new_number(session, model.name),
        files=listed,
        fingerprint=fingerprint,
        source=source,
        digests=None if digests is None else dict(digests),
        digest=digest,
        is_stored=is_stored,
        signed_by=signature.key if signature else None,
        signed_version=signature.version if signature else None,
    )
    session.add(version)
    session.flush()
    record_event(session, "model", f"registered {version.reference} from {files.path}")
    return version


def version_files(version: Version) -> dict[str, dict[str, Any]]:
    """What was registered of each file, by its name in the model's folder."""
    place = Path(version.path)
    names = {Path(file["name"]): file for file in version.files or []}
    folder = place.parent if place in names else place
    return {path.relative_to(folder).as_posix(): file for path, file in names.items()}


def remember_digests(version: Version, digests: Mapping[str, str]) -> None:
    """Of a version whose files had not been read through yet; of others nothing changes."""
    if version.digests is None:
        version.digests = dict(digests)
        version.digest = content_digest(digests)


def list_models(session: Session) -> Sequence[Model]:
    """All models by name, each with its versions."""
    return session.scalars(select(Model).order_by(Model.name)).all()


def remove_model(session: Session, reference: str) -> None:
    """Forget a model with all its versions ("name") or one version of it ("name:version").

    Stopped deployments of what is removed go with it; files stay where they are.

    Raises: ModelNotFound; Conflict while a deployment wants it, an instance of it lives, or an alias points
    at the one version.
    """
    name, colon, _ = reference.partition(":")
    model = find_model(session, name)
    going = [find_version(session, reference)] if colon else list(model.versions)
    versions = [version.id for version in going]
    running = session.scalars(select(Deployment).where(Deployment.desired == "running")).all()
    wanted = [
        deployment.name
        for deployment in running
        if deployment.version_id in versions
        or ((rules := served_rules(deployment)) is not None and rules.version_id in versions)
    ]
    ended = [InstanceState.STOPPED, InstanceState.FAILED]
    living = (
        select(Deployment.name)
        .join(Instance, Instance.deployment_id == Deployment.id)
        .where(Instance.version_id.in_(versions), Instance.state.in_(LIVE_STATES - set(ended)))
    )
    users = sorted({*wanted, *session.scalars(living)})
    if users:
        raise Conflict(
            f"model {reference!r} is used by deployment {', '.join(users)}; stop it first", param="name"
        )
    pointing = [alias.name for alias in model.aliases if alias.version_id in versions]
    if colon and pointing:
        raise Conflict(
            f"model {reference!r} is where alias {', '.join(pointing)} points; move it, or remove it, first",
            param="name",
        )
    if len(going) == len(model.versions):
        session.delete(model)
    else:
        for version in going:
            session.delete(version)
    record_event(session, "model", f"removed {reference}")


def _existing_version(session: Session, content: _Content, name: str | None) -> Version | None:
    is_same = Version.fingerprint == content.fingerprint
    if content.digest is not None:
        is_same &= Version.digest.is_(None) | (Version.digest == content.digest)
        if name is not None:
            is_same |= (Version.digest == content.digest) & Version.is_stored
    if content.is_stored:
        is_same &= Version.is_stored
    known = select(Version).where(is_same).order_by(Version.id.desc())
    if name is not None:
        known = known.join(Version.model).where(Model.name == check_name(name, "model"))
    return session.scalars(known.limit(1)).first()


def _get_or_create_model(session: Session, name: str) -> Model:
    model = session.scalars(select(Model).where(Model.name == name)).first()
    if model is None:
        model = Model(name=name)
        session.add(model)
        session.flush()
    return model


def _new_number(session: Session, model: str) -> int:
    """Of a version; one that was removed does not come back as another."""
    row = session.get(VersionNumber, model)
    if row is None:
        row = VersionNumber(model=model, newest=0)
        session.add(row)
    row.newest += 1
    return row.newest


def _described(files: ModelFiles) -> dict[str, Any]:
    """What the files say of themselves, by the columns of a version. Raises: ModelFilesError."""
    if len(files.architecture) > MAX_ARCHITECTURE:
        raise ModelFilesError(
            f"the architecture of {files.name} is {files.architecture[:40]!r}... with "
            f"{len(files.architecture)} characters; at most {MAX_ARCHITECTURE} are believable"
        )
    if files.context_length > MAX_CONTEXT:
        raise ModelFilesError(
            f"the context of {files.name} is {files.context_length} tokens; at most {MAX_CONTEXT} are "
            "believable"
        )
    return {
        "path": str(files.path),
        "format": files.format,
        "quantization": files.quantization,
        "architecture": files.architecture,
        "size_bytes": files.size_bytes,
        "context_length": files.context_length,
        "licence": files.licence,
        "spec": spec_summary(files),
        "abilities": abilities(files),
        "chat_template": files.chat_template,
    }


def _describe_file(path: Any) -> dict[str, Any]:
    status = path.stat()
    return {"name": str(path), "size_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _usable_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:128] or "model"
