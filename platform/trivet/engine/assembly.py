"""Puts an engine together: model files, backend, memory plan, runner, core, tokenizer.

The engine process and the offline `LLM` share it. Nothing here imports torch; `create_runner` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trivet.adapters import LoRARequest
from trivet.contract import Runner
from trivet.engine import backend_answers
from trivet.engine.adapters import (
    check_runner_takes,
    check_same_files,
    load_adapters,
    load_late,
    read_adapters,
)
from trivet.engine.core import CoreConfig, EngineCore
from trivet.engine.grammar import GrammarCompiler
from trivet.engine.measured_peaks import NOWHERE, PeakStore
from trivet.engine.placement import Placement, planned_spec
from trivet.engine_settings import EngineSettings
from trivet.models.model_files import ModelFiles
from trivet.models.pooling_config import model_pooling
from trivet.pooling_params import DEFAULT_POOLING, PoolingParams
from trivet.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model, ready to take sequences."""

    files: ModelFiles
    placement: Placement
    runner: Runner
    core: EngineCore
    tokenizer: Tokenizer
    grammars: GrammarCompiler
    hidden_size: int
    adapter_paths: dict[str, Path]  # of those loaded, resolved, by name

    def resolved_pooling(self, params: PoolingParams) -> PoolingParams:
        """With the model's own pooling where none is named.

        Raises: RequestError; ModelFilesError where the model's own is not carried out.
        """
        params.check(self.hidden_size)
        if params.pooling is not None:
            return params
        return msgspec.structs.replace(params, pooling=model_pooling(self.files) or DEFAULT_POOLING)

    def adapter_named(self, request: LoRARequest | None) -> str:
        """The name that sequences carry; "" is the base model. One that comes with a path is loaded.

        Raises: RequestError, also where a loaded one of that name is of other files; ModelFilesError,
            WeightsError, Unsupported of its files.
        """
        if request is None:
            return ""
        if request.path and request.name in self.adapter_paths:
            check_same_files(request, self.adapter_paths[request.name])
        elif request.path:
            slots, taken = self.placement.config.adapters, self.core.adapter_slots
            adapter = load_late(self.runner, taken, slots, planned_spec(self.files), request)
            self.adapter_paths[request.name] = adapter.path.resolve()
        self.core.check_adapter(request.name)
        return request.name

    def close(self) -> None:
        self.runner.close()


def assemble(
    files: ModelFiles,
    placement: Placement,
    settings: EngineSettings,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_warming: Callable[[], None] = lambda: None,
    peaks: PeakStore = NOWHERE,
) -> Engine:
    """Load the model and warm it up; what its steps took at most is kept in `peaks`.

    Raises: ModelFilesError, BackendError; nothing stays allocated then.
    """
    tokenizer = load_tokenizer(files.path)
    spec = planned_spec(files)
    runner = backend_answers.create_runner(
        placement.backend, spec, placement.config, placement.plan, placement.devices
    )
    try:
        check_runner_takes(runner, placement.config.adapters, placement.backend.name)
        adapters = read_adapters(settings, spec)
        runner.load(files.weights, on_progress)
        load_adapters(runner, adapters, files.name)
        runner.allocate_kv()
        on_warming()
        try:
            runner.warm_up()
        finally:  # a start that the peaks have ended, too
            peaks.keep(runner, files, placement)
    except BaseException:
        runner.close()
        raise
    core = EngineCore(
        runner,
        placement.plan,
        CoreConfig(
            eos_token_ids=files.eos_token_ids,
            vocab_size=spec.vocab_size,
            num_tokens=spec.num_tokens,
            max_num_seqs=settings.max_num_seqs,
            max_num_waiting=settings.max_num_waiting,
            enable_prefix_caching=settings.enable_prefix_caching,
            seed=settings.seed,
            adapters=tuple(adapters),
        ),
    )
    grammars = GrammarCompiler(tokenizer, spec.num_tokens, files.eos_token_ids)
    paths = {name: adapter.path.resolve() for name, adapter in adapters.items()}
    return Engine(files, placement, runner, core, tokenizer, grammars, spec.hidden_size, paths)
