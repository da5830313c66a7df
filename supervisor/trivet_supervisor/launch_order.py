"""What an engine process is given: its settings, its command and its whole environment."""

from __future__ import annotations

from collections.abc import Mapping

from trivet.config import Settings
from trivet.engine.placement import Placement
from trivet.engine_settings import LIVE_SETTINGS
from trivet.launching import LEASE_VARIABLE


def planned_settings(settings: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """Engine settings with the plan's decisions written in.

    The engine plans again with the memory that is free when it gets there; with these it arrives at the
    plan that the ledger has reserved, or refuses.
    """
    plan = placement.plan
    decided = {
        "max_model_len": str(plan.max_model_len),
        "max_num_batched_tokens": str(plan.max_num_batched_tokens),
    }
    if len(plan.num_blocks) == 1:
        decided["num_gpu_blocks_override"] = str(plan.num_blocks[0])
    own = {name: value for name, value in settings.items() if name not in LIVE_SETTINGS}
    return {**own, **decided}


def engine_command(settings: Settings, backend: str) -> list[str]:
    """Without its last argument, the file of the order.

    -P: a folder named like a package must not hide it because an engine was started beside it.
    """
    return [settings.for_backend(backend).python, "-P", "-m", "trivet.engine.process"]


def engine_environment(
    settings: Settings,
    inherited: Mapping[str, str],
    backend: str,
    launch_env: Mapping[str, str],
    lease: str,
) -> dict[str, str]:
    """In full; the site's variables for the backend beat the backend's own (`launch_env`)."""
    return {
        **inherited,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # torch would import torch_npu in every engine
        "PYTHONUNBUFFERED": "1",  # a crash loses no line of the log
        **launch_env,
        **settings.for_backend(backend).env,
        LEASE_VARIABLE: lease,
    }
