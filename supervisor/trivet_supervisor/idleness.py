"""Finds the deployments that nobody uses: what of them is ready has been idle for long enough.

What has failed, or waits for room or for its next attempt, keeps nothing loaded: it has no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trivet.engine_settings import parse_engine_settings
from trivet_registry.deployments_store import RUNNING
from trivet_registry.instance_state import InstanceState
from trivet_registry.tables import Deployment, Instance

_AT_REST = (InstanceState.FAILED, InstanceState.PENDING)


def idle_timeout_s(deployment: Deployment) -> float | None:
    """None: it is never unloaded. Cheap for the many that have none."""
    text = deployment.settings.get("idle_timeout_s")
    if text is None:
        return None
    # Alone: another setting that this version no longer knows concerns its next launch, and no turn.
    return parse_engine_settings({"idle_timeout_s": text}).idle_timeout_s


def why_idle(
    deployment: Deployment, instances: Sequence[Instance], idle_s_of: Callable[[str], float]
) -> str | None:
    """The reason to unload it now; None: it is in use, or is not to be unloaded.

    Args:
        instances: those that live.
        idle_s_of: seconds for which an instance has had nothing to do.
    """
    limit_s = idle_timeout_s(deployment)
    if limit_s is None or deployment.is_asleep or deployment.desired != RUNNING:
        return None
    loaded = [i for i in instances if i.instance_state not in _AT_REST]
    if not loaded or any(i.instance_state is not InstanceState.READY for i in loaded):
        return None  # nothing to unload, or something is going on
    if min(idle_s_of(i.id) for i in loaded) < limit_s:
        return None
    return f"no request for {limit_s:g} s: it is unloaded, and the next request wakes it"
