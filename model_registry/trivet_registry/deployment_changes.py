"""Changes of a deployment that runs: an update replaces its instances, sleep unloads them for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from trivet.engine_settings import LIVE_SETTINGS, EngineSettings, parse_engine_settings
from trivet.errors import Conflict, RequestError
from trivet_registry.deployments_store import (
    RUNNING,
    check_backends,
    check_device,
    check_fallback,
    check_priority,
    check_replicas,
    get_deployment,
    kept_settings,
)
from trivet_registry.events_store import list_events, record_event
from trivet_registry.tables import Deployment, Version, utc_now

UNCHANGED = "\0unchanged"  # None is a value: no device, no fallback


@dataclass(frozen=True, slots=True)
class Update:
    """What to change; what is left out stays as it is."""

    version: Version | None = None
    alias: str | None = None  # with a version: the alias by which it was named, and that is followed
    backend: str | None = None
    device: str | None = UNCHANGED
    replicas: int | None = None
    settings: Mapping[str, str | None] = field(default_factory=dict)  # None takes a setting back
    priority: int | None = None
    fallback: str | None = UNCHANGED
    if_updated_at: datetime | None = None  # `updated_at` as whoever changes it saw it


def update_deployment(session: Session, name: str, update: Update) -> Deployment:
    """Change a running deployment.

    What an engine is started with (version, backend, device, settings) makes a new generation: its
    instances replace the others one by one. The rest counts at once and touches no instance.

    Raises: NotFound; Conflict where it is stopped, or was changed since `if_updated_at`; RequestError;
    ConfigError for a wrong engine setting.
    """
    deployment = get_deployment(session, name)
    if deployment.desired != RUNNING:
        raise Conflict(f"deployment {name!r} is stopped; launch it again", param="name")
    if update.if_updated_at not in (None, deployment.updated_at):
        raise _changed_meanwhile(session, name)
    changes = [*_change_rules(session, deployment, update), *_change_engines(deployment, update)]
    if changes:
        deployment.updated_at = utc_now()
        record_event(session, "deployment", f"update: {'; '.join(changes)}", deployment=name)
    return deployment


def sleep_deployment(session: Session, name: str, reason: str) -> None:
    """Unload a deployment that nobody uses; it stays wanted, and the next request wakes it."""
    deployment = get_deployment(session, name)
    if deployment.desired == RUNNING and not deployment.is_asleep:
        deployment.is_asleep = True
        record_event(session, "deployment", reason, deployment=name, to_state="asleep")


def wake_deployment(session: Session, name: str) -> bool:
    """Load it again. False where it was awake or is not wanted. Raises: NotFound."""
    deployment = get_deployment(session, name)
    if deployment.desired != RUNNING or not deployment.is_asleep:
        return False
    deployment.is_asleep = False
    record_event(session, "deployment", "a request woke it", deployment=name, from_state="asleep")
    return True


def _changed_meanwhile(session: Session, name: str) -> Conflict:
    """With what the last act was."""
    acts = [event for event in list_events(session, deployment=name) if event.kind == "deployment"]
    last = acts[-1].reason if acts else "changed"
    return Conflict(
        f"deployment {name!r} was changed since you looked at it ({last}); look again, and change that",
        param="if_updated_at",
    )


def _change_rules(session: Session, deployment: Deployment, update: Update) -> list[str]:
    """What the supervisor and the web servers act on."""
    changes = []
    if update.replicas is not None and update.replicas != deployment.replicas:
        check_replicas(update.replicas)
        changes.append(f"replicas {deployment.replicas} to {update.replicas}")
        deployment.replicas = update.replicas
    if update.priority is not None and update.priority != deployment.priority:
        changes.append(f"priority {deployment.priority} to {update.priority}")
        deployment.priority = check_priority(update.priority)
    if update.fallback not in (UNCHANGED, deployment.fallback):
        fallback = check_fallback(session, deployment.name, update.fallback)
        changes.append(f"fallback {deployment.fallback or 'none'} to {fallback or 'none'}")
        deployment.fallback = fallback
    return changes


def _change_engines(deployment: Deployment, update: Update) -> list[str]:
    """What an engine is started with; a change of it is a new generation."""
    before = _engine_rules(deployment)
    changes = []
    if update.version is not None and update.version.id != deployment.version_id:
        changes.append(f"model {deployment.version.reference} to {update.version.reference}")
        deployment.version = update.version
    if update.version is not None and update.alias != deployment.alias:
        changes.append(f"alias {deployment.alias or 'none'} to {update.alias or 'none'}")
        deployment.alias = update.alias
    if update.backend is not None and update.backend != deployment.backend:
        changes.append(f"backend {deployment.backend} to {update.backend}")
        deployment.backend = check_backends(update.backend)
    if update.device not in (UNCHANGED, deployment.device):
        changes.append(f"device {deployment.device or 'any'} to {update.device or 'any'}")
        deployment.device = check_device(update.device)
    settings = kept_settings(deployment.settings, update.settings)
    changes += _described(deployment.settings, settings)
    if _checked(deployment, settings).idle_timeout_s is None:
        deployment.is_asleep = False  # no request would wake it any more
    deployment.settings = settings
    if _engine_rules(deployment) != before:
        deployment.generation += 1
        deployment.is_asleep = False
    return changes


def _checked(deployment: Deployment, settings: Mapping[str, str]) -> EngineSettings:
    """Raises: ConfigError; RequestError: the name is what clients ask for."""
    parsed = parse_engine_settings(settings)
    if parsed.served_model_name not in (None, deployment.name):
        raise RequestError(
            f"served_model_name {parsed.served_model_name!r} would rename deployment {deployment.name!r}; "
            "launch it under that name instead",
            param="settings",
        )
    return parsed


def _engine_rules(deployment: Deployment) -> tuple[object, ...]:
    settings = {key: value for key, value in deployment.settings.items() if key not in LIVE_SETTINGS}
    return deployment.version.id, deployment.backend, deployment.device, settings


def _described(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [
        f"{key} {old.get(key, 'default')} to {new.get(key, 'default')}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
