"""What an engine process is given: its order file, its command and its whole environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trivet.config import Settings
from trivet.engine.assembly import Placement
from trivet.engine_settings import LIVE_SETTINGS
from trivet.errors import Unavailable
from trivet.launching import LEASE_VARIABLE, Confinement
from trivet.messages import LaunchOrder

logger = logging.getLogger(__name__)

GIB = 1 << 30


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


def write_order(settings: Settings, order: LaunchOrder) -> Path:
    """A file of mode 0600 that is whole or absent. Raises: Unavailable where it cannot be written."""
    file = settings.paths.order_file(order.instance_id)
    scratch = file.with_suffix(".new")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(msgspec.json.encode(order))
        scratch.rename(file)
    except OSError as error:
        raise Unavailable(f"launch order {file} cannot be written: {error.strerror}") from error
    return file


def remove_run_files(settings: Settings, instance_id: str) -> None:
    """The order and the sockets of an engine that is gone.

    Where they cannot be removed (a file system that became read-only) it is logged: that is no reason not to
    write down that the engine is gone, and the next order says it when it cannot be written.
    """
    sockets = [settings.paths.run / f"engine-{instance_id}.{kind}" for kind in ("sock", "beat", "ctl")]
    for file in [settings.paths.order_file(instance_id), *sockets]:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("instance=%s file=%s cannot be removed: %s", instance_id, file, error.strerror)


def engine_command(settings: Settings, backend: str, order_file: Path) -> list[str]:
    """-P: a folder named like a package must not hide it because an engine was started beside it."""
    return [settings.for_backend(backend).python, "-P", "-m", "trivet.engine.process", str(order_file)]


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


def confinement(settings: Settings, backend: str) -> Confinement:
    """As the site says it of the backend."""
    own = settings.for_backend(backend)
    limit_gib = own.memory_limit_gib
    return Confinement(own.cpu_set(), None if limit_gib is None else int(limit_gib * GIB))
