"""What a deployment served with last: a fault that passes does not end what has served before.

A generation has served from the first of its instances that was ready. What it was started with is kept
until a later generation has served, so that its instances can be made again while that one cannot start.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trivet_registry.instance_state import InstanceState
from trivet_registry.tables import Deployment, Instance


class EngineRules(msgspec.Struct, frozen=True):
    """What the engines of one generation are started with."""

    generation: int
    version_id: int
    backend: str
    device: str | None
    settings: dict[str, str]
    ran_on: str | None = None  # backend of the instance that was ready last; unknown of older registries


def newest_rules(deployment: Deployment) -> EngineRules:
    """Of the generation that is wanted."""
    return EngineRules(
        deployment.generation,
        deployment.version_id,
        deployment.backend,
        deployment.device,
        dict(deployment.settings),
    )


def served_rules(deployment: Deployment) -> EngineRules | None:
    """Of the last generation of this launch that has served; None: none has, or it cannot be read."""
    try:
        rules = msgspec.convert(deployment.served, EngineRules)
    except msgspec.ValidationError:
        return None
    return rules if rules.generation >= deployment.first_generation else None


def rules_of(instance: Instance) -> EngineRules:
    """What this instance is started with."""
    served = served_rules(instance.deployment)
    if served is not None and served.generation == instance.generation < instance.deployment.generation:
        return served
    return newest_rules(instance.deployment)


def has_served(instance: Instance) -> bool:
    """Whether any instance of its generation has been ready, also one of before a shutdown or a sleep."""
    served = served_rules(instance.deployment)
    return instance.ready_at is not None or (served is not None and served.generation == instance.generation)


def is_given_up(instance: Instance) -> bool:
    """It has failed, and no time mends that: a person has to change or end its deployment."""
    is_final = instance.needs_change or not has_served(instance)
    return instance.instance_state is InstanceState.FAILED and is_final


def served_on(instance: Instance) -> str | None:
    """The backend where it served, or else its deployment did last; None: nowhere yet."""
    if instance.ready_at is not None:
        return instance.backend
    served = served_rules(instance.deployment)
    return None if served is None else served.ran_on


def remember_served(instance: Instance) -> None:
    """It is ready. An older generation than the newest is what it was already, or is on its way out."""
    deployment = instance.deployment
    if instance.generation != deployment.generation:
        return
    rules = msgspec.structs.replace(newest_rules(deployment), ran_on=instance.backend)
    served: dict[str, Any] = msgspec.to_builtins(rules)
    if deployment.served != served:
        deployment.served = served
