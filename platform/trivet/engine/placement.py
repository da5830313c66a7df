"""Where a model runs and with what memory: a backend, devices, a plan.

The engine process, the offline `LLM` and the supervisor share it; nothing of the engine itself loads for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trivet.contract import Backend, DeviceInfo, MemoryPlan, RunnerConfig
from trivet.engine import backend_answers
from trivet.engine.adapters import adapter_slots, read_adapters
from trivet.engine.measured_peaks import NOWHERE, PeakStore
from trivet.engine_settings import EngineSettings
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.model_files import ModelFiles
from trivet.models.transformers_outline import outline_spec
from trivet.plugins import PluginHost
from trivet.prober import Prober

if TYPE_CHECKING:
    from trivet.models.spec import ModelSpec

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 10.0
AUTO_ORDER = ("cuda", "ascend", "cpu")  # the fastest kind that can run the model; never "null"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model runs and with what memory."""

    backend: Backend
    devices: tuple[DeviceInfo, ...]
    config: RunnerConfig
    plan: MemoryPlan
    # Backends that were to be preferred, by name, and what kept each from it.
    passed_over: Mapping[str, Unsupported | DoesNotFit] = field(default_factory=dict)


def runner_config(settings: EngineSettings, spec: ModelSpec) -> RunnerConfig:
    """The runner's part of a deployment's settings, of a model with `spec`.

    Raises: Unsupported; ModelFilesError and WeightsError of an adapter's files.
    """
    if settings.quantization not in (None, "auto", "gguf"):
        raise Unsupported(
            f"quantization {settings.quantization!r} is not supported; weights run as the files store them: "
            "leave it unset"
        )
    options = dict(settings.options)
    if settings.num_threads is not None:
        options["num_threads"] = str(settings.num_threads)
    return RunnerConfig(
        dtype=_short_dtype(settings.dtype),
        kv_dtype=_short_dtype(settings.kv_cache_dtype),
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        memory_fraction=settings.gpu_memory_utilization,
        num_blocks=settings.num_gpu_blocks_override,
        block_size=settings.block_size,
        swap_bytes=int(settings.swap_space * (1 << 30)),
        tensor_parallel=settings.tensor_parallel_size,
        adapters=adapter_slots(settings, read_adapters(settings, spec)),
        options=options,
    )


def _short_dtype(name: str) -> str:
    """Spellings of vLLM and torch in the contract's."""
    return {
        "bfloat16": "bf16",
        "float16": "f16",
        "half": "f16",
        "fp16": "f16",
        "float32": "f32",
        "float": "f32",
        "fp32": "f32",
    }.get(name.removeprefix("torch."), name)


def place(
    host: PluginHost,
    files: ModelFiles,
    settings: EngineSettings,
    backend: str = "auto",
    device_uids: Sequence[str] = (),
    peaks: PeakStore = NOWHERE,
) -> Placement:
    """Choose a backend and devices by what can run the model, and plan its memory.

    Args:
        peaks: what earlier starts have measured.

    Raises: Unsupported, DoesNotFit with every candidate's own reason.
    """
    names = [name for name in AUTO_ORDER if name in host.backends] if backend == "auto" else [backend]
    spec = planned_spec(files)
    config = runner_config(settings, spec)
    backend_answers.check_context(files, spec, config)
    refusals: list[tuple[str, Unsupported | DoesNotFit]] = []
    for name in names:
        candidate = host.backend(name)
        try:
            return _place_on(candidate, files, spec, config, device_uids, peaks)
        except (Unsupported, DoesNotFit) as error:
            refusals.append((name, error))
    if len(refusals) == 1:
        raise refusals[0][1]
    raise Unsupported(backend_answers.none_can_run(files.name, refusals))


def _place_on(
    backend: Backend,
    files: ModelFiles,
    spec: ModelSpec,
    config: RunnerConfig,
    device_uids: Sequence[str],
    peaks: PeakStore,
) -> Placement:
    devices = _devices(backend, device_uids, config.tensor_parallel)
    for device in devices:
        backend_answers.check(backend, spec, files, config, device)
    told = peaks.told(config, backend.name, files, devices)
    plan = backend_answers.plan(backend, spec, files, told, devices)
    if config.swap_bytes and not plan.num_host_blocks:
        logger.warning("swap_space has no effect on %s: preemption recomputes instead", backend.name)
    return Placement(backend, devices, config, plan)


def planned_spec(files: ModelFiles) -> ModelSpec:
    """The model's spec, or the sizes of a model that transformers' own code has to run.

    Raises: UnsupportedArchitecture where transformers cannot run it either.
    """
    return files.spec or outline_spec(files.config, files.num_tokens)


def _devices(backend: Backend, uids: Sequence[str], count: int) -> tuple[DeviceInfo, ...]:
    found = Prober().probe(backend.name, backend, PROBE_TIMEOUT_S)
    if uids:
        by_uid = {device.uid: device for device in found} | {str(d.index): d for d in reversed(found)}
        unknown = [uid for uid in uids if uid not in by_uid]
        if unknown:
            have = ", ".join(device.uid for device in found) or "none"
            raise Unsupported(f"{backend.name} has no device {unknown[0]!r}; it has: {have}")
        found = [by_uid[uid] for uid in uids]
    usable = backend_answers.usable_devices(backend, found, count)
    return tuple(usable if uids else usable[:count])
