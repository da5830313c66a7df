"""Aliases: movable names of a model's versions, with what they pointed at before.

A deployment that was launched by an alias follows it: moving the alias is an update of that deployment,
so that instances of the other version replace the running ones as they become ready.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from trivet.errors import Conflict, NotFound, RequestError
from trivet_registry.deployment_changes import Update, update_deployment
from trivet_registry.deployments_store import RUNNING
from trivet_registry.events_store import record_event
from trivet_registry.references import check_name, choose, find_model
from trivet_registry.tables import Alias, AliasMove, Deployment, Model, Version, utc_now


def set_alias(session: Session, model_name: str, name: str, version: str) -> Alias:
    """Point it at a version of its model (a number, or another alias); it is made where it is not there.

    Running deployments that follow it are updated. Raises: ModelNotFound; RequestError for the name.
    """
    model = find_model(session, model_name)
    _check_alias(name)
    target = choose(session, f"{model.name}:{version}").version
    alias = _find(session, model, name)
    if alias is None:
        alias = Alias(model=model, name=name, version=target)
        session.add(alias)
        _moved(session, alias, None)
    elif alias.version_id != target.id:
        before = alias.version.version
        alias.version = target
        alias.updated_at = utc_now()
        _moved(session, alias, before)
    session.flush()
    return alias


def roll_back_alias(session: Session, model_name: str, name: str) -> Alias:
    """Point it at what it pointed at before its last move. A second roll-back takes the first one back.

    Raises: NotFound; Conflict where it never pointed at anything else, or that version is gone.
    """
    alias = get_alias(session, model_name, name)
    last = session.scalars(_moves(alias.model, name).limit(1)).first()
    if last is None or last.from_version is None:
        raise Conflict(f"alias {model_name}:{name} never pointed at another version", param="alias")
    if all(version.version != last.from_version for version in alias.model.versions):
        raise Conflict(
            f"alias {model_name}:{name} pointed at version {last.from_version}, which was removed; "
            "set it to another one",
            param="alias",
        )
    return set_alias(session, model_name, name, str(last.from_version))


def remove_alias(session: Session, model_name: str, name: str) -> None:
    """Raises: NotFound; Conflict while a deployment that shall run follows it."""
    alias = get_alias(session, model_name, name)
    following = [deployment.name for deployment in _followers(session, alias)]
    if following:
        raise Conflict(
            f"alias {model_name}:{name} is followed by deployment {', '.join(following)}; stop it, or update "
            f"it to a version: trivet update {following[0]} --model {model_name}:{alias.version.version}",
            param="alias",
        )
    session.add(AliasMove(model_id=alias.model_id, alias=name, from_version=alias.version.version))
    record_event(session, "model", f"alias {model_name}:{name} removed")
    session.delete(alias)
    session.flush()


def get_alias(session: Session, model_name: str, name: str) -> Alias:
    """Raises: ModelNotFound; NotFound listing the model's aliases."""
    model = find_model(session, model_name)
    alias = _find(session, model, name)
    if alias is None:
        have = ", ".join(one.name for one in model.aliases) or "none"
        raise NotFound(f"model {model_name!r} has no alias {name!r}; it has: {have}", param="alias")
    return alias


def list_aliases(session: Session, model_name: str | None = None) -> Sequence[Alias]:
    """By model and name."""
    query = select(Alias).join(Alias.model).order_by(Model.name, Alias.name)
    if model_name is not None:
        query = query.where(Alias.model_id == find_model(session, model_name).id)
    return session.scalars(query).all()


def alias_history(session: Session, model_name: str, name: str) -> Sequence[AliasMove]:
    """The newest move first, also of an alias that was removed. Raises: ModelNotFound."""
    return session.scalars(_moves(find_model(session, model_name), name)).all()


def followed_by(version: Version) -> list[str]:
    """Names of the aliases that point at it."""
    return [alias.name for alias in version.model.aliases if alias.version_id == version.id]


def _check_alias(name: str) -> None:
    check_name(name, "alias")
    if name.isdecimal() or name == "latest":
        raise RequestError(
            f"alias {name!r} would be taken for {'a version' if name.isdecimal() else 'the newest version'}; "
            "use a word, such as prod or canary",
            param="alias",
        )


def _find(session: Session, model: Model, name: str) -> Alias | None:
    """Locked against another move at the same time, where the database has row locks."""
    query = select(Alias).where(Alias.model_id == model.id, Alias.name == name)
    return session.scalars(query.with_for_update(of=Alias)).first()


def _moved(session: Session, alias: Alias, before: int | None) -> None:
    to = alias.version
    session.add(AliasMove(model_id=to.model_id, alias=alias.name, from_version=before, to_version=to.version))
    was = "" if before is None else f" (it was {before})"
    record_event(session, "model", f"alias {to.name}:{alias.name} is version {to.version}{was}")
    for deployment in _followers(session, alias):
        update_deployment(session, deployment.name, Update(version=to, alias=alias.name))


def _followers(session: Session, alias: Alias) -> Sequence[Deployment]:
    query = (
        select(Deployment)
        .join(Version, Version.id == Deployment.version_id)
        .where(Version.model_id == alias.model_id, Deployment.alias == alias.name)
        .where(Deployment.desired == RUNNING)
        .order_by(Deployment.name)
    )
    return session.scalars(query).all()


def _moves(model: Model, name: str) -> Select[AliasMove]:
    mine = AliasMove.model_id == model.id, AliasMove.alias == name
    return select(AliasMove).where(*mine).order_by(AliasMove.id.desc())
