"""Deployments: what operators want to run. The supervisor reads them and changes but `is_asleep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from trivet.adapters import with_one_spelling
from trivet.engine_settings import parse_engine_settings
from trivet.errors import Conflict, NotFound, RequestError
from trivet_registry.events_store import record_event
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.references import check_name
from trivet_registry.tables import Deployment, Instance, Version, utc_now

RUNNING = "running"
STOPPED = "stopped"
MAX_REPLICAS = 1024
MAX_BACKEND_LENGTH = 64  # of its column
MAX_DEVICE_LENGTH = 128  # of its column
MAX_PRIORITY = 1_000_000


def create_deployment(
    session: Session,
    *,
    version: Version,
    alias: str | None = None,
    name: str | None = None,
    backend: str = "auto",
    device: str | None = None,
    replicas: int = 1,
    settings: Mapping[str, str] | None = None,
    priority: int = 0,
    fallback: str | None = None,
) -> Deployment:
    """Want `replicas` instances of a version. With an `alias` that points at it, it follows the alias.

    `backend` is "auto", a name, or names by preference with commas. Where room is scarce, who has the lower
    `priority` is placed first. `fallback` is the deployment that answers when this one is full or too late.

    Without a name it is the setting `served_model_name`, else the model's: clients give it as `model`.

    A deployment of this name that is stopped, or whose every instance has failed, is launched anew.

    Raises: Conflict where the name runs already; RequestError; ConfigError for a wrong engine setting.
    """
    settings = kept_settings(settings or {})
    name = _name_of(name, parse_engine_settings(settings).served_model_name, version)
    check_replicas(replicas)
    check_backends(backend)
    check_device(device)
    deployment = _find(session, name)
    if deployment is None:
        deployment = Deployment(name=name, generation=0)
        session.add(deployment)
    elif deployment.desired == RUNNING and not _has_failed(session, deployment):
        raise Conflict(
            f"deployment {name!r} runs already (model {deployment.version.name}); stop it first, "
            "or launch under another name",
            param="name",
        )
    else:
        _keep_patience(session, deployment)
        deployment.created_at = utc_now()
    deployment.version = version
    deployment.alias = alias
    deployment.backend = backend
    deployment.device = device
    deployment.replicas = replicas
    deployment.settings = settings
    deployment.desired = RUNNING
    deployment.priority = check_priority(priority)
    deployment.fallback = check_fallback(session, name, fallback)
    deployment.is_asleep = False
    deployment.served = None
    deployment.generation += 1
    deployment.first_generation = deployment.generation
    deployment.updated_at = utc_now()
    session.flush()
    reason = f"launch {version.reference}, backend {backend}, replicas {replicas}"
    record_event(session, "deployment", reason, deployment=name, to_state=RUNNING)
    return deployment


def kept_settings(*given: Mapping[str, str | None]) -> dict[str, str]:
    """Each setting as the last one has it that gives it; None takes it back. Raises: ConfigError."""
    merged = {key: value for settings in given for key, value in with_one_spelling(settings).items()}
    return {key: value for key, value in merged.items() if value is not None}


def list_deployments(session: Session, *, desired: str | None = None) -> Sequence[Deployment]:
    """All deployments by name, or those that are wanted "running" or "stopped"."""
    query = select(Deployment).order_by(Deployment.name)
    if desired is not None:
        query = query.where(Deployment.desired == desired)
    return session.scalars(query).all()


def get_deployment(session: Session, name: str) -> Deployment:
    """Raises: NotFound listing the names that exist."""
    deployment = _find(session, name)
    if deployment is None:
        names = ", ".join(session.scalars(select(Deployment.name).order_by(Deployment.name))) or "none"
        raise NotFound(f"deployment {name!r} does not exist; existing: {names}", param="name")
    return deployment


def set_replicas(session: Session, name: str, replicas: int) -> Deployment:
    """Raises: NotFound; Conflict where it is stopped; RequestError."""
    check_replicas(replicas)
    deployment = get_deployment(session, name)
    if deployment.desired != RUNNING:
        raise Conflict(f"deployment {name!r} is stopped; launch it again", param="name")
    reason = f"replicas {deployment.replicas} to {replicas}"
    deployment.replicas = replicas
    deployment.updated_at = utc_now()
    record_event(session, "deployment", reason, deployment=name)
    return deployment


def stop_deployment(session: Session, name: str, drain_timeout_s: float | None = None) -> Deployment:
    """Want nothing of it to run; idempotent. `drain_timeout_s` None leaves the site's setting.

    Raises: NotFound; RequestError for a negative time.
    """
    if drain_timeout_s is not None and not 0 <= drain_timeout_s < float("inf"):
        raise RequestError(
            f"drain_timeout_s is {drain_timeout_s}; it is seconds, 0 or more", param="drain_timeout_s"
        )
    deployment = get_deployment(session, name)
    if drain_timeout_s is not None:  # it is meant for all of that name
        earlier = Instance.generation < deployment.first_generation
        _set_patience(session, deployment, drain_timeout_s, earlier)
    if deployment.desired == STOPPED:
        if drain_timeout_s is not None:  # a second, less patient stop
            deployment.drain_timeout_s = drain_timeout_s
        return deployment
    deployment.desired = STOPPED
    deployment.drain_timeout_s = drain_timeout_s
    deployment.updated_at = utc_now()
    record_event(
        session, "deployment", "stop requested", deployment=name, from_state=RUNNING, to_state=STOPPED
    )
    return deployment


def _find(session: Session, name: str) -> Deployment | None:
    return session.scalars(select(Deployment).where(Deployment.name == name)).first()


def _name_of(given: str | None, served: str | None, version: Version) -> str:
    """Raises: RequestError for a name that cannot be used, and for two names."""
    if given is not None:
        check_name(given, "deployment")
    if served is None:
        return check_name(given or version.name, "deployment")
    check_name(served, "served_model_name: deployment")
    if given not in (None, served):
        raise RequestError(
            f"name is {given!r} and the setting served_model_name is {served!r}, and a deployment has one "
            "name, under which it is served; leave one of them out",
            param="name",
        )
    return served


def _keep_patience(session: Session, deployment: Deployment) -> None:
    """What still drains goes on as it was told to: the next stop is of what is launched now."""
    latest = Instance.generation >= deployment.first_generation
    _set_patience(session, deployment, deployment.drain_timeout_s, latest)
    deployment.drain_timeout_s = None


def _set_patience(
    session: Session, deployment: Deployment, drain_timeout_s: float | None, which: ColumnElement[bool]
) -> None:
    mine = Instance.deployment_id == deployment.id, Instance.state.in_(LIVE_STATES), which
    session.execute(update(Instance).where(*mine).values(drain_timeout_s=drain_timeout_s))


def _has_failed(session: Session, deployment: Deployment) -> bool:
    """Also none of the generations before an update, which serve on where the newest cannot."""
    mine = Instance.deployment_id == deployment.id, Instance.generation >= deployment.first_generation
    found = session.execute(select(Instance.generation, Instance.state).where(*mine)).all()
    has_begun = any(generation == deployment.generation for generation, _ in found)
    return has_begun and all(state in (InstanceState.FAILED, InstanceState.STOPPED) for _, state in found)


def check_replicas(replicas: int) -> None:
    """Raises: RequestError."""
    if not 0 <= replicas <= MAX_REPLICAS:
        raise RequestError(f"replicas is {replicas}; it must be 0 to {MAX_REPLICAS}", param="replicas")


def check_backends(names: str) -> str:
    """ "auto", or names with commas, each once. Raises: RequestError."""
    listed = names.split(",")
    is_good = all(listed) and len(set(listed)) == len(listed) and len(names) <= MAX_BACKEND_LENGTH
    if not is_good or ("auto" in listed and len(listed) > 1):
        raise RequestError(
            f"backend is {names[:80]!r}; it is auto, a name, or names by preference: ascend,cuda,cpu",
            param="backend",
        )
    return names


def check_device(names: str | None) -> str | None:
    """Raises: RequestError."""
    if names is not None and len(names) > MAX_DEVICE_LENGTH:
        raise RequestError(
            f"device {names[:80]!r}... has {len(names)} characters; it is one device or several, by uid or "
            f"index, with commas, in at most {MAX_DEVICE_LENGTH}",
            param="device",
        )
    return names


def check_priority(priority: int) -> int:
    """Raises: RequestError."""
    if abs(priority) > MAX_PRIORITY:
        raise RequestError(
            f"priority is {str(priority)[:40]}; it must be {-MAX_PRIORITY} to {MAX_PRIORITY}",
            param="priority",
        )
    return priority


def check_fallback(session: Session, name: str, fallback: str | None) -> str | None:
    """A deployment that exists and whose own fallbacks do not lead back here. Raises: RequestError."""
    chain = [name]
    following = fallback
    while following is not None:
        chain.append(following)
        if following in chain[:-1]:
            raise RequestError(
                f"fallback {fallback!r} leads back to itself: {' -> '.join(chain)}", param="fallback"
            )
        found = session.scalars(select(Deployment).where(Deployment.name == following)).first()
        if found is None and following == fallback:
            others = select(Deployment.name).where(Deployment.name != name).order_by(Deployment.name)
            names = ", ".join(session.scalars(others)) or "none"
            raise RequestError(f"fallback {fallback!r} is no deployment; existing: {names}", param="fallback")
        following = found.fallback if found is not None else None
    return fallback
