"""What is under test: one backend on one device in one dtype, with models, oracles and warm runners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivet.contract import Backend, DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.gguf_oracle import read_gguf_oracle
from trivet.contract_suite.oracle import FunctionOracle, Oracle, TransformersOracle
from trivet.contract_suite.tiny_adapters import make_tiny_adapter
from trivet.contract_suite.tiny_models import MAX_MODEL_LEN, make_tiny_model
from trivet.contract_suite.watched_runner import WatchedRunner
from trivet.engine.core import CoreConfig, EngineCore
from trivet.engine.placement import planned_spec
from trivet.errors import TrivetError, Unsupported
from trivet.models.adapter_files import AdapterFiles, read_adapter
from trivet.models.model_files import ModelFiles, open_model
from trivet.models.spec import ModelSpec

Float32 = NDArray[np.float32]

PROBE_TIMEOUT_S = 20.0
TESTED_DTYPES = ("f32", "bf16")
MIN_BLOCKS, MIN_KV_TOKENS = 64, 2048  # room for a dozen sequences, and soon reused
GGUF_MODEL = "smollm2"
KV_DTYPE = "kv_cache_dtype"  # in `tested_options`: a setting of the runner, and no option of the backend


@dataclass(frozen=True)
class Candidate:
    """A subject before anything is loaded, or the reason why there is none."""

    backend: Backend
    device: DeviceInfo | None
    dtype: str
    options: Mapping[str, str] = field(default_factory=dict)
    absent_because: str | None = None
    variant: str = ""  # the values of one of the backend's `tested_options`
    kv_dtype: str = "auto"

    @property
    def name(self) -> str:
        parts = (self.backend.name, self.dtype, self.variant) if self.device else (self.backend.name,)
        return "-".join(part for part in parts if part)


def find_candidates(
    backends: Mapping[str, Backend],
    names: Iterable[str] = (),
    dtypes: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> list[Candidate]:
    """The first usable device of each backend (all, or those named), once per dtype.

    Raises: Unsupported where a name is not installed.
    """
    wanted = list(names) or sorted(backends)
    found: list[Candidate] = []
    for name in wanted:
        if name not in backends:
            raise Unsupported(f"backend {name!r} is not installed; installed: {', '.join(sorted(backends))}")
        found.extend(_candidates_of(backends[name], dtypes or TESTED_DTYPES, options or {}))
    return found


def _candidates_of(backend: Backend, dtypes: Sequence[str], options: Mapping[str, str]) -> list[Candidate]:
    devices = backend.probe(PROBE_TIMEOUT_S)
    usable = [device for device in devices if device.unusable_because is None]
    if not usable:
        reasons = "; ".join(f"{device.name}: {device.unusable_because}" for device in devices)
        reason = f"backend {backend.name}: {reasons or 'no device was found'}"
        return [Candidate(backend, None, "none", options, reason)]
    variants: Sequence[Mapping[str, str]] = getattr(backend, "tested_options", ({},))
    return [
        Candidate(
            backend,
            usable[0],
            dtype,
            {key: value for key, value in variant.items() if key != KV_DTYPE} | dict(options),
            variant="-".join(sorted(variant.values())),
            kv_dtype=variant.get(KV_DTYPE, "auto"),
        )
        for variant in variants
        if not variant.keys() & options.keys()
        for dtype in dtypes
        # A cache of fewer bits cannot meet the bounds of float32.
        if dtype in usable[0].dtypes and (dtype != "f32" or KV_DTYPE not in variant)
    ]


class ModelLibrary:
    """Models of the session, made when first wanted."""

    def __init__(self, folder: Path, find_gguf: Callable[[], Path]) -> None:
        self._folder = folder
        self._find_gguf = find_gguf
        self._files: dict[str, ModelFiles] = {}
        self._oracles: dict[str, Oracle] = {}
        self._adapters: dict[tuple[str, int], AdapterFiles] = {}

    def files(self, name: str) -> ModelFiles:
        if name not in self._files:
            path = self._find_gguf() if name == GGUF_MODEL else make_tiny_model(name, self._folder)
            self._files[name] = open_model(path)
        return self._files[name]

    def spec(self, name: str) -> ModelSpec:
        return planned_spec(self.files(name))

    def oracle(self, name: str) -> Oracle:
        """Of a model, or of "MODEL+1" with its adapter of that index merged."""
        if name not in self._oracles:
            model, _, adapter = name.partition("+")
            read = read_gguf_oracle if model == GGUF_MODEL else TransformersOracle.from_folder
            path, num_tokens = Path(self.files(model).path), self.spec(model).num_tokens
            self._oracles[name] = oracle = read(path, MAX_MODEL_LEN, num_tokens)
            if adapter:
                oracle.adapt(self.adapter(model, int(adapter)).path)
        return self._oracles[name]

    def adapter(self, model: str, index: int) -> AdapterFiles:
        """One of `tiny_adapters.ADAPTERS` for the model."""
        if (model, index) not in self._adapters:
            spec, folder = self.spec(model), self._folder / f"{model}-adapter-{index}"
            self._adapters[model, index] = read_adapter(
                make_tiny_adapter(spec, index, folder), spec, str(index)
            )
        return self._adapters[model, index]


@dataclass(frozen=True, slots=True)
class Launched:
    """A runner that is ready for its first step."""

    runner: Runner
    plan: MemoryPlan
    config: RunnerConfig


class Subject:
    """The one argument of every case."""

    def __init__(self, candidate: Candidate, models: ModelLibrary) -> None:
        assert candidate.device is not None
        self.backend = candidate.backend
        self.device = candidate.device
        self.dtype, self.kv_dtype = candidate.dtype, candidate.kv_dtype
        self.options = dict(candidate.options)
        self.models = models
        self._drivers: dict[tuple[object, ...], Driver] = {}
        self._function: Callable[[ModelSpec, Sequence[int]], Float32] | None = getattr(
            self.backend, "reference_logits", None
        )

    # ---- what to expect

    @property
    def has_weights(self) -> bool:
        """False for a backend whose tokens come from a documented function."""
        return self._function is None

    @property
    def is_exact(self) -> bool:
        """Whether greedy ids have to equal the oracle's."""
        return self.dtype == "f32" or not self.has_weights

    def oracle(self, model: str = "llama") -> Oracle:
        if self._function is None:
            return self.models.oracle(model)
        function, spec, backend = self._function, self.models.spec(model), self.backend

        def hidden(token_ids: Sequence[int]) -> Float32:
            values: Float32 = backend.reference_hidden(spec, token_ids)  # type: ignore[attr-defined]  # offered
            return values

        return FunctionOracle(lambda token_ids: function(spec, token_ids), hidden)

    # ---- runners

    def config(self, *, options: Mapping[str, str] | None = None, **changes: Any) -> RunnerConfig:
        """The suite's usual settings with changes; `options` are merged."""
        base = RunnerConfig(
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=12,
            num_blocks=1 + max(MIN_BLOCKS, MIN_KV_TOKENS // self.block_size),
        )
        return replace(base, options={**self._usual_options, **(options or {})}, **changes)

    @cached_property
    def block_size(self) -> int:
        """Tokens, by the backend's own choice."""
        config = RunnerConfig(
            dtype=self.dtype, kv_dtype=self.kv_dtype, max_model_len=MAX_MODEL_LEN, options=self.options
        )
        return self.plan(config).kv.block_size

    @cached_property
    def _usual_options(self) -> dict[str, str]:
        """One thread where that can be said: tiny models spend more on handing work over than on it."""
        single = RunnerConfig(dtype=self.dtype, options={**self.options, "num_threads": "1"})
        return dict(single.options if self.accepts(single) else self.options)

    def accepts(self, config: RunnerConfig, model: str = "llama") -> bool:
        files = self.models.files(model)
        try:
            self.backend.check(self.models.spec(model), files.weights, config, self.device)
        except Unsupported:
            return False
        return True

    def plan(self, config: RunnerConfig, model: str = "llama") -> MemoryPlan:
        files = self.models.files(model)
        return self.backend.plan(self.models.spec(model), files.weights, config, [self.device])

    def launch(
        self, config: RunnerConfig, model: str = "llama", *, plan: MemoryPlan | None = None
    ) -> Launched:
        """Check, plan, create, load, allocate and warm up; whoever calls it closes the runner."""
        spec, weights = self.models.spec(model), self.models.files(model).weights
        self.backend.check(spec, weights, config, self.device)
        plan = plan or self.plan(config, model)
        runner = self.backend.create_runner(spec, config, plan, [self.device])
        try:
            runner.load(weights, lambda done, total: None)
            runner.allocate_kv()
            runner.warm_up()
        except TrivetError:
            runner.close()
            raise
        return Launched(runner, plan, config)

    @contextmanager
    def launched(self, model: str = "llama", **changes: Any) -> Iterator[Launched]:
        """A runner of one's own, closed at the end."""
        launched = self.launch(self.config(**changes), model)
        try:
            yield launched
        finally:
            launched.runner.close()

    @contextmanager
    def core(
        self, model: str = "llama", *, core: Mapping[str, Any] | None = None, **changes: Any
    ) -> Iterator[EngineCore]:
        """An engine core on a runner of its own; `core` changes its `CoreConfig`."""
        spec = self.models.spec(model)
        with self.launched(model, **changes) as launched:
            config = CoreConfig(
                eos_token_ids=(),
                vocab_size=spec.vocab_size,
                num_tokens=spec.num_tokens,
                max_num_seqs=launched.config.max_num_seqs,
            )
            runner = WatchedRunner(launched.runner)
            yield EngineCore(runner, launched.plan, replace(config, **(core or {})))

    def driver(self, model: str = "llama", **changes: Any) -> Driver:
        """A driver on a runner that lives until the subject is closed: cases share it, one after another."""
        config = self.config(**changes)
        key = (model, str(config))
        if key in self._drivers and not self._drivers[key].is_idle:
            self._drivers.pop(key).runner.close()
        if key not in self._drivers:
            launched = self.launch(config, model)
            self._drivers[key] = self.drive(launched, model)
        self._drivers[key].reset()
        return self._drivers[key]

    def drive(self, launched: Launched, model: str = "llama") -> Driver:
        return Driver(
            launched.runner,
            launched.plan,
            vocab_size=self.models.spec(model).num_tokens,
            max_num_seqs=launched.config.max_num_seqs,
        )

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.runner.close()
        self._drivers.clear()
