"""What a launch would take, device by device: whether it fits, how fast it can be, what would make it fit.

Nothing is estimated here: every answer, also to "would it fit if", is a plan of the backend itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from trivet.contract import Backend, DeviceInfo, MemoryPlan, RunnerConfig
from trivet.engine import backend_answers
from trivet.engine.device_groups import device_groups
from trivet.engine.ledger import Holding, Ledger
from trivet.engine.measured_peaks import NOWHERE, PeakStore
from trivet.engine.placement import AUTO_ORDER, PROBE_TIMEOUT_S, planned_spec, runner_config
from trivet.engine_settings import EngineSettings
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.expected_tensors import expected_tensors
from trivet.models.model_files import ModelFiles
from trivet.models.spec import ModelSpec
from trivet.plugins import PluginHost
from trivet.prober import Prober

SMALLEST_CONTEXT = 16  # a remedy that leaves less is none
SMALLER_KV = ("bf16", "fp8_e4m3", "fp8", "int8")  # in the order of what they lose
SMALLER_WEIGHTS = (("dtype", "bf16"), ("weights", "w8a16"), ("weights", "w4a16"))


@dataclass(frozen=True, slots=True)
class Change:
    """Something that would make it fit, by itself."""

    text: str
    setting: str | None = None  # of EngineSettings, with `value`
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """The most that memory bandwidth allows, in tokens/s: each step reads the weights and the KV in use."""

    bandwidth_bytes_per_s: float
    one_stream: float  # at the start of a context
    one_stream_full: float  # at its end
    all_streams_full: float  # as many sequences of full length as fit, together


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """One device, or one device a rank, as far as this launch is concerned."""

    backend: str
    devices: tuple[DeviceInfo, ...]  # as probed
    ours_bytes: int = 0  # of the first device: claims of live instances
    others_bytes: int = 0  # in use by anybody else
    left_bytes: int = 0  # that this launch may count on
    plan: MemoryPlan | None = None
    reason: str | None = None  # why there is no plan
    lacks_memory: bool = False  # and that it is memory
    changes: tuple[Change, ...] = ()  # the smallest first
    speed: Speed | None = None

    @property
    def fits(self) -> bool:
        return self.plan is not None


class Capacity:
    """One model with its settings, asked of many devices."""

    def __init__(
        self,
        files: ModelFiles,
        settings: EngineSettings,
        ledger: Ledger | None = None,
        peaks: PeakStore = NOWHERE,
    ) -> None:
        """Raises: Unsupported for settings that no backend could meet."""
        self._files = files
        self._spec: ModelSpec = planned_spec(files)
        self._config = runner_config(settings, self._spec)
        self._ledger = ledger or Ledger()
        self._peaks = peaks
        backend_answers.check_context(files, self._spec, self._config)

    def answers(
        self,
        host: PluginHost,
        prober: Prober,
        backend: str = "auto",
        device: str | None = None,
    ) -> list[DeviceAnswer]:
        """Every device in question, the preferred backend's first.

        Raises: Unsupported for no such backend.
        """
        names = [n for n in AUTO_ORDER if n in host.backends] if backend == "auto" else backend.split(",")
        found: list[DeviceAnswer] = []
        for name in names:
            one = host.backend(name)
            devices = prober.probe(name, one, PROBE_TIMEOUT_S)
            answers = self._of_backend(one, devices, device)
            found += [self._with_speed(answer, one, prober) for answer in answers]
        return [self._with_other_device(answer, found) for answer in found]

    def _of_backend(
        self, backend: Backend, devices: Sequence[DeviceInfo], wanted: str | None
    ) -> Iterator[DeviceAnswer]:
        try:
            num_ranks = self._config.tensor_parallel
            groups = device_groups(backend, devices, wanted, num_ranks, self._ledger.left_on)
        except Unsupported as error:
            yield DeviceAnswer(backend.name, tuple(devices), reason=str(error))
            return
        for group in groups:
            yield self._of_group(backend, group)

    def _of_group(self, backend: Backend, group: Sequence[DeviceInfo]) -> DeviceAnswer:
        first = group[0]
        taken = sum(holding.on(first) for holding in self._ledger.holdings if holding.is_taken)
        answer = DeviceAnswer(
            backend.name,
            tuple(group),
            ours_bytes=self._ledger.reserved_on(first),
            others_bytes=max(0, first.total_bytes - first.free_bytes - taken),
            left_bytes=self._ledger.left_on(first).free_bytes,
        )
        try:
            plan = self._plan(backend, group, self._config)
        except DoesNotFit as error:
            changes = tuple(self._changes(backend, group))
            return replace(answer, reason=str(error), lacks_memory=True, changes=changes)
        except Unsupported as error:
            return replace(answer, reason=str(error))
        return replace(answer, plan=plan)

    def _plan(
        self,
        backend: Backend,
        group: Sequence[DeviceInfo],
        config: RunnerConfig,
        gone: Sequence[Holding] = (),
    ) -> MemoryPlan:
        """Raises: Unsupported, DoesNotFit."""
        ledger = self._ledger.without(gone)
        left = [ledger.left_on(device) for device in group]
        for device in left:
            backend_answers.check(backend, self._spec, self._files, config, device)
        told = self._peaks.told(config, backend.name, self._files, left)
        plan = backend_answers.plan(backend, self._spec, self._files, told, left)
        if any(self._ledger.on(device) and plan.total_bytes > device.free_bytes for device in left):
            raise DoesNotFit(
                f"it needs {_gib(plan.total_bytes)} and other instances leave {_gib(left[0].free_bytes)}"
            )
        return plan

    # ---- what would make it fit ----

    def _changes(self, backend: Backend, group: Sequence[DeviceInfo]) -> Iterator[Change]:
        def fits(config: RunnerConfig, gone: Sequence[Holding] = ()) -> bool:
            try:
                self._plan(backend, group, config, gone)
            except (Unsupported, DoesNotFit):
                return False
            return True

        yield from self._fewer_blocks(fits)
        yield from self._smaller_kv(fits)
        yield from self._shorter_context(fits)
        yield from self._smaller_weights(fits)
        yield from self._larger_share(fits)
        yield from self._stopped_instances(group[0], fits)

    def _fewer_blocks(self, fits: Callable[[RunnerConfig], bool]) -> Iterator[Change]:
        if self._config.num_blocks is not None and fits(replace(self._config, num_blocks=None)):
            yield Change("take the KV blocks that there is room for", "num_gpu_blocks_override", "none")

    def _smaller_kv(self, fits: Callable[[RunnerConfig], bool]) -> Iterator[Change]:
        for dtype in SMALLER_KV:
            if dtype != self._config.kv_dtype and fits(replace(self._config, kv_dtype=dtype)):
                yield Change(f"store KV as {dtype}", "kv_cache_dtype", dtype)
                return

    def _shorter_context(self, fits: Callable[[RunnerConfig], bool]) -> Iterator[Change]:
        asked = self._config.max_model_len or self._files.context_length
        low, high = 0, asked // SMALLEST_CONTEXT
        while low < high:  # in units of SMALLEST_CONTEXT; the bytes needed grow with the length
            middle = (low + high + 1) // 2
            trial = replace(self._config, max_model_len=middle * SMALLEST_CONTEXT)
            low, high = (middle, high) if fits(trial) else (low, middle - 1)
        if low:
            length = low * SMALLEST_CONTEXT
            yield Change(f"shorten the context to {length:,} tokens", "max_model_len", str(length))

    def _smaller_weights(self, fits: Callable[[RunnerConfig], bool]) -> Iterator[Change]:
        for key, value in SMALLER_WEIGHTS:
            if key == "dtype":
                trial, setting = replace(self._config, dtype=value), "dtype"
            else:
                options = {**self._config.options, key: value}
                trial, setting = replace(self._config, options=options), f"options.{key}"
            if trial != self._config and fits(trial):
                value = "bfloat16" if value == "bf16" else value
                yield Change(f"hold the weights as {value}", setting, value)
                return

    def _larger_share(self, fits: Callable[[RunnerConfig], bool]) -> Iterator[Change]:
        share = self._config.memory_fraction
        if share is None:
            return
        for percent in range(int(share * 100) + 1, 101):
            if fits(replace(self._config, memory_fraction=percent / 100)):
                value = f"{percent / 100:g}"
                yield Change(f"allow {percent} % of the device", "gpu_memory_utilization", value)
                return

    def _stopped_instances(
        self, device: DeviceInfo, fits: Callable[[RunnerConfig, Sequence[Holding]], bool]
    ) -> Iterator[Change]:
        """The smallest one that is enough; else as few of the largest as are."""
        holdings = sorted(self._ledger.on(device), key=lambda holding: holding.on(device))
        alone = ([holding] for holding in holdings)
        together = accumulate(([holding] for holding in reversed(holdings)), lambda some, more: some + more)
        for gone in (*alone, *together):
            if fits(self._config, gone):
                names = ", ".join(f"{holding.deployment} ({holding.instance})" for holding in gone)
                yield Change(f"stop {names}, which holds {_gib(sum(h.on(device) for h in gone))}")
                return

    def _with_other_device(self, answer: DeviceAnswer, found: Iterable[DeviceAnswer]) -> DeviceAnswer:
        """Another device costs nothing, so it stands first."""
        other = next((one for one in found if one.fits), None)
        if other is None or not answer.lacks_memory:
            return answer
        uids = ",".join(device.uid for device in other.devices)
        change = Change(f"use {uids} of {other.backend}")
        return replace(answer, changes=(change, *answer.changes))

    # ---- how fast ----

    def _with_speed(self, answer: DeviceAnswer, backend: Backend, prober: Prober) -> DeviceAnswer:
        """Ranks read their parts at the same time; a plan is of one."""
        plan = answer.plan
        if plan is None:
            return answer
        bandwidth = prober.bandwidth(backend.name, backend, answer.devices[0], PROBE_TIMEOUT_S)
        if bandwidth is None:
            return answer
        weights = self._read_bytes(plan)
        token_bytes = sum(group.token_bytes for group in plan.kv.groups)
        full = token_bytes * plan.max_model_len
        count = max(1, num_sequences(plan))
        speed = Speed(
            bandwidth,
            bandwidth / (weights + token_bytes),
            bandwidth / (weights + full),
            count * bandwidth / (weights + count * full),
        )
        return replace(answer, speed=speed)

    def _read_bytes(self, plan: MemoryPlan) -> float:
        """Of the weights in a step: of an embedding that is no head only a row a token."""
        weights = next((part.size_bytes for part in plan.parts if part.name == "weights"), 0)
        if self._spec.tie_embeddings or self._spec.shapes_only:
            return weights
        sizes = [shape[0] * shape[1] for _, shape in expected_tensors(self._spec) if len(shape) == 2]
        return weights * (1 - self._spec.vocab_size * self._spec.hidden_size / sum(sizes))


def num_kv_tokens(plan: MemoryPlan) -> int:
    """Tokens that the scarcest group holds; block 0 is scratch and holds none."""
    return (min(plan.num_blocks) - 1) * plan.kv.block_size


def num_sequences(plan: MemoryPlan) -> int:
    """Of full length at once; each takes whole blocks."""
    return (min(plan.num_blocks) - 1) // -(-plan.max_model_len // plan.kv.block_size)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
