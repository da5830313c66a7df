"""Starts one attempt of a placed instance."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from trivet import __version__
from trivet.confining import confinement
from trivet.contract import DeviceInfo, MemoryPlan
from trivet.engine.backend_answers import NoDevice
from trivet.engine.placement import Placement
from trivet.launching import EngineHandle, ModelFile, ProcessOrder
from trivet.messages import LaunchOrder
from trivet_registry.instance_state import LIVE_STATES, InstanceState
from trivet_registry.instances_store import list_instances, move_instance
from trivet_registry.models_store import version_files
from trivet_registry.served import rules_of
from trivet_registry.tables import Instance
from trivet_supervisor import engine_logs
from trivet_supervisor.adapter_files import adapter_files
from trivet_supervisor.launch_order import engine_environment, planned_settings
from trivet_supervisor.means import Means

OF_AN_EARLIER_ATTEMPT = (  # what a row knows of a process, and of its end
    *("endpoints", "pid", "process_start_time", "processes", "load", "memory", "notices"),
    *("exit_code", "ended_at"),
)
FAR_ORPHAN_TIMEOUT_S = 1800.0  # of an engine on another host, where the site sets none


def prepare_start(
    means: Means, instance: Instance, placement: Placement, launch_env: Mapping[str, str]
) -> tuple[Callable[[], EngineHandle], str]:
    """Write down that it is `starting`. Returns what spawns its engine, on any thread, and its lease.

    `launch_env` is what the placement's backend wants in the environment. It was asked before: nothing
    here runs a plugin's code, because an instance whose row says `starting` must get its process.

    What is returned raises Unavailable where no process could be started.
    """
    attempt, lease = instance.attempt + 1, secrets.token_hex(16)
    paths, name = means.settings.paths, instance.deployment.name
    log = engine_logs.log_file(paths, name, instance.id, attempt)
    with means.database.reading() as session:
        living = [one.id for one in list_instances(session, name, LIVE_STATES)]
    engine_logs.prune(paths, name, instance.id, attempt, living)
    # The lease is written down before the process exists: a supervisor that dies in between leaves a
    # row by which the next one finds the engine.
    with means.database.session() as session:
        move_instance(
            session,
            instance.id,
            InstanceState.STARTING,
            _described(attempt, placement),
            attempt=attempt,
            lease=lease,
            backend=placement.backend.name,
            device_uids=[device.uid for device in placement.devices],
            plan=_written(placement.plan),
            host=placement.devices[0].host or None,
            run_dir=str(paths.run),
            log_file=str(log),
            progress_done=0,
            progress_total=0,
            entered_s=means.clock(),
            **dict.fromkeys(OF_AN_EARLIER_ATTEMPT),
        )
    model_files, settings, host = (
        _model_files(instance),
        rules_of(instance).settings,
        placement.devices[0].host,
    )

    def start() -> EngineHandle:
        of_adapters = adapter_files(settings) if host else []  # here an engine reads them itself
        return means.launcher.start(
            ProcessOrder(
                launch=_order(means, instance, placement, lease),
                command=means.command(means.settings, placement.backend.name),
                env=engine_environment(
                    means.settings, means.inherited, placement.backend.name, launch_env, lease
                ),
                log_file=log,
                host=host,
                confinement=confinement(means.settings, placement.backend.name),
                model_files=[*model_files, *of_adapters],
            )
        )

    return start, lease


def _described(attempt: int, placement: Placement) -> str:
    where = ", ".join(device.uid for device in placement.devices)
    told = f"attempt {attempt} on {placement.backend.name} ({where})"
    # That a host has no device of a kind is no news; that one it has cannot be used is.
    refused = [
        f"{name}: {error}"
        for name, error in placement.passed_over.items()
        if not isinstance(error, NoDevice) or error.reasons
    ]
    return f"{told}; passed over {'; '.join(refused)}" if refused else told


def _order(means: Means, instance: Instance, placement: Placement, lease: str) -> LaunchOrder:
    name, settings = instance.deployment.name, rules_of(instance).settings
    return LaunchOrder(
        instance_id=instance.id,
        lease=lease,
        model_path=instance.version.path,
        served_model_name=settings.get("served_model_name", name),
        backend=placement.backend.name,
        device_uids=[uid_on_host(device) for device in placement.devices],
        settings=planned_settings(settings, placement),
        run_dir=str(means.settings.paths.run),
        notices=_notices(instance.version.context_length, settings, placement.plan),
        peaks_dir="" if placement.devices[0].host else str(means.settings.paths.peaks),
        orphan_timeout_s=_orphan_timeout_s(means, placement),
        version=__version__,
    )


def _notices(context_length: int, settings: Mapping[str, str], plan: MemoryPlan) -> list[str]:
    """Nobody asked for a short context, so whoever sees it by a refused prompt should know why."""
    if "max_model_len" in settings or not plan.max_model_len < context_length:
        return []
    blocks = "+".join(map(str, plan.num_blocks))
    return [
        f"max_model_len is {plan.max_model_len}, all that {blocks} KV blocks of {plan.kv.block_size} tokens "
        f"hold; the model's own is {context_length}"
    ]


def _written(plan: MemoryPlan) -> dict[str, object]:
    """A plan as the registry keeps it and the API shows it."""
    return {
        "parts": [{"name": part.name, "size_bytes": part.size_bytes} for part in plan.parts],
        "total_bytes": plan.total_bytes,
        "host_bytes": plan.host_bytes,
        "num_blocks": list(plan.num_blocks),
        "block_size": plan.kv.block_size,
        "max_model_len": plan.max_model_len,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
    }


def _orphan_timeout_s(means: Means, placement: Placement) -> float | None:
    """Elsewhere each has one: no supervisor may ever reach its host again, and nobody else would end it."""
    set_s = means.settings.orphan_timeout_s
    return FAR_ORPHAN_TIMEOUT_S if set_s is None and placement.devices[0].host else set_s


def _model_files(instance: Instance) -> list[ModelFile]:
    digests = instance.version.digests or {}
    return [
        ModelFile(file["name"], file["size_bytes"], digests.get(name, ""))
        for name, file in version_files(instance.version).items()
    ]


def uid_on_host(device: DeviceInfo) -> str:
    """As its own host names it."""
    return device.uid.removeprefix(f"{device.host}/") if device.host else device.uid
