"""What backends answer while a model is placed, checked.

A backend may be a stranger's plugin. A mistake in it becomes `Unsupported`, which names the backend, the
member and what came of it, so that placing goes on with the next backend or ends with a reason.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet.contract import Backend, DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import DoesNotFit, Unsupported

if TYPE_CHECKING:
    from trivet.models.model_files import ModelFiles
    from trivet.models.spec import ModelSpec

logger = logging.getLogger(__name__)

MIN_CONTEXT = 2  # one token of a prompt and the one that follows it
RUNNER_MEMBERS = (
    "features",
    "max_in_flight",
    "load",
    "allocate_kv",
    "warm_up",
    "host_buffer",
    "forward",
    "sample",
    "collect",
    "memory",
    "close",
)
# What faulty code raises without meaning to; Trivet's own errors are none of these.
FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NameError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class NoDevice(Unsupported):
    """The backend has no usable device here; `reasons` says why of those that it found."""

    def __init__(self, backend: str, found: Sequence[DeviceInfo]) -> None:
        self.reasons = "; ".join(f"{d.uid}: {d.unusable_because}" for d in found)
        super().__init__(f"backend {backend} has no usable device here ({self.reasons or 'it found none'})")


def usable_devices(backend: Backend, found: Sequence[DeviceInfo], num_ranks: int) -> list[DeviceInfo]:
    """At least one device a rank. Raises: NoDevice; Unsupported where there are too few."""
    usable = [device for device in found if device.unusable_because is None]
    if not usable:
        raise NoDevice(backend.name, found)
    if len(usable) < num_ranks:
        others = "; ".join(f"{d.uid}: {d.unusable_because}" for d in found if d.unusable_because)
        raise Unsupported(
            f"backend {backend.name} has {len(usable)} usable device{'s' * (len(usable) > 1)} here and "
            f"tensor_parallel_size {num_ranks} needs {num_ranks}{f' ({others})' if others else ''}; "
            f"set at most {len(usable)}"
        )
    return usable


def check_context(files: ModelFiles, spec: ModelSpec, config: RunnerConfig) -> None:
    """Raises: Unsupported for a context that is too short to generate, or longer than the model's own."""
    wanted, longest = config.max_model_len, files.context_length
    if wanted is None:
        return
    if wanted < MIN_CONTEXT:
        raise Unsupported(
            f"max_model_len {wanted} is too short: a context needs at least {MIN_CONTEXT} tokens, one of the "
            "prompt and one that follows it"
        )
    if longest > 0 and wanted > longest and not _has_dynamic_rope(files, spec):
        raise Unsupported(
            f"max_model_len {wanted} is beyond the {longest} tokens that {files.name} was made for; "
            f"set at most {longest}"
        )


def _has_dynamic_rope(files: ModelFiles, spec: ModelSpec) -> bool:
    """Such a model stretches to any length that is fixed when it is loaded."""
    if not spec.shapes_only:
        ropes = (kind.attention.rope for kind in spec.kinds)
        return any(rope is not None and rope.scaling == "dynamic" for rope in ropes)
    for key in ("rope_parameters", "rope_scaling"):
        settings = files.config.get(key)
        if isinstance(settings, dict) and "dynamic" in (settings.get("rope_type"), settings.get("type")):
            return True
    return False


def check(
    backend: Backend, spec: ModelSpec, files: ModelFiles, config: RunnerConfig, device: DeviceInfo
) -> None:
    """As the contract. Raises: Unsupported, and what the contract lets `check` raise."""
    with _faults_named(backend, "check"):
        backend.check(spec, files.weights, config, device)


def plan(
    backend: Backend, spec: ModelSpec, files: ModelFiles, config: RunnerConfig, devices: Sequence[DeviceInfo]
) -> MemoryPlan:
    """As the contract, of the contract's types. Raises: Unsupported, DoesNotFit."""
    with _faults_named(backend, "plan"):
        made: object = backend.plan(spec, files.weights, config, devices)
    if not isinstance(made, MemoryPlan):
        raise _wrong(backend, "plan", "a MemoryPlan", made)
    try:
        msgspec.convert(msgspec.to_builtins(made), MemoryPlan)
    except (TypeError, msgspec.ValidationError) as error:
        raise Unsupported(
            f"backend {backend.name} is faulty: its plan holds a wrong value: {error}"
        ) from None
    counts = (*made.num_blocks, made.kv.block_size, made.max_num_batched_tokens, made.max_model_len)
    if len(made.num_blocks) != len(made.kv.groups) or min(counts) < 1:
        raise Unsupported(
            f"backend {backend.name} is faulty: its plan has {list(made.num_blocks)} blocks of "
            f"{made.kv.block_size} tokens in {len(made.kv.groups)} groups, steps of "
            f"{made.max_num_batched_tokens} tokens and a context of {made.max_model_len}"
        )
    if made.max_model_len < MIN_CONTEXT:
        raise DoesNotFit(
            f"the plan leaves a context of {made.max_model_len} token and {MIN_CONTEXT} are needed; "
            "raise num_gpu_blocks_override, or leave it unset"
        )
    return made


def launch_env(backend: Backend, devices: Sequence[DeviceInfo]) -> dict[str, str]:
    """As the contract. Raises: Unsupported."""
    with _faults_named(backend, "launch_env"):
        wanted: object = backend.launch_env(devices)
    try:
        return msgspec.convert(wanted, dict[str, str])
    except msgspec.ValidationError:
        raise _wrong(backend, "launch_env", "variables and values of text", wanted) from None


def create_runner(
    backend: Backend,
    spec: ModelSpec,
    config: RunnerConfig,
    plan: MemoryPlan,
    devices: Sequence[DeviceInfo],
) -> Runner:
    """As the contract. Raises: Unsupported where a library is missing; what the backend raises."""
    try:
        runner = backend.create_runner(spec, config, plan, devices)
    except ImportError as error:
        raise Unsupported(
            f"backend {backend.name} cannot make its runner: {_described(error)}; install what it needs"
        ) from error
    missing = [member for member in RUNNER_MEMBERS if not hasattr(runner, member)]
    if missing:
        raise _wrong(backend, "create_runner", f"a Runner (it lacks {', '.join(missing)})", runner)
    return runner


def none_can_run(model: str, refusals: Sequence[tuple[str, Unsupported | DoesNotFit]]) -> str:
    """One message of all backends: those with devices first, the absent ones shortly behind."""
    reasons = [f"{name}: {error}" for name, error in refusals if not isinstance(error, NoDevice)]
    absent = [
        f"{name} ({error.reasons})" if error.reasons else name
        for name, error in refusals
        if isinstance(error, NoDevice)
    ]
    if absent:
        reasons.append(f"no usable device: {', '.join(absent)}")
    return f"no backend can run {model} here: {'; '.join(reasons) or 'none is installed'}"


@contextmanager
def _faults_named(backend: Backend, member: str) -> Iterator[None]:
    try:
        yield
    except FAULTS as error:
        logger.debug("backend=%s %s failed", backend.name, member, exc_info=True)
        raise Unsupported(f"backend {backend.name} is faulty: {member} raised {_described(error)}") from error


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _wrong(backend: Backend, member: str, wanted: str, came: object) -> Unsupported:
    kind = "None" if came is None else f"a value of type {type(came).__name__}"
    return Unsupported(f"backend {backend.name} is faulty: {member} returned {kind} and must return {wanted}")
