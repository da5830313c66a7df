"""What prompts that arrive do to the streams that decode beside them, for one step budget.

A step computes all decodes and fills the rest of its token budget with a chunk of a prompt. A large budget
brings a prompt its first token soon and holds every stream up for as long as the chunk takes; a small one
does the reverse. The default budget is chosen from this chart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy as np

from trivet.bench.figures import Figures, percentiles
from trivet.engine.assembly import Engine
from trivet.engine.sequence import Sequence
from trivet.errors import GenerationError
from trivet.sampling_params import SamplingParams

QUIET_STEPS = 32  # measured before the first prompt arrives
STREAM_PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Streams that decode, and prompts that arrive one after the other: the next one as the last is done."""

    num_streams: int
    num_prompts: int
    prompt_tokens: int


def interfere(
    engine: Engine,
    load: Disturbance,
    sampling: SamplingParams,
    rng: np.random.Generator,
    on_done: Callable[[], object] = lambda: None,
) -> Figures:
    """Figures of one run; all times in ms.

    `itl_ms_p50` ...: between two tokens of a stream while a prompt was computed; `quiet_itl_ms_p50` ...:
    before one came. `ttft_ms_p50` ...: of the prompts; `prefill_tokens_per_s`: median over the prompts.

    Raises: GenerationError; ContextLengthExceeded where the streams do not fit.
    """
    run = _Run(engine, sampling, rng)
    try:
        return _measure(run, load, on_done)
    finally:
        run.abort_all()


def _measure(run: _Run, load: Disturbance, on_done: Callable[[], object]) -> Figures:
    streams = {run.add(STREAM_PROMPT_TOKENS, run.room(STREAM_PROMPT_TOKENS)) for _ in range(load.num_streams)}
    run.step_until(lambda: len(run.last_s) == load.num_streams)
    run.gaps_s.clear()
    for _ in range(QUIET_STEPS):
        run.step()
    quiet, run.gaps_s = run.gaps_s, []
    ttft_s = []
    for _ in range(load.num_prompts):
        start = time.perf_counter()
        prompt = run.add(load.prompt_tokens, 1)
        run.step_until(lambda prompt=prompt: prompt in run.ended)  # type: ignore[misc]  # bound default
        ttft_s.append(time.perf_counter() - start)
        on_done()
    if streams & run.ended:
        raise GenerationError(
            f"the streams ended before {load.num_prompts} prompts had come; "
            "raise max_model_len, or take fewer or shorter prompts"
        )
    return {
        **percentiles("itl_ms", run.gaps_s),
        **percentiles("quiet_itl_ms", quiet),
        **percentiles("ttft_ms", ttft_s),
        "prefill_tokens_per_s": median(load.prompt_tokens / t for t in ttft_s),
    }


class _Run:
    """The engine's loop, and when each stream's tokens came."""

    def __init__(self, engine: Engine, sampling: SamplingParams, rng: np.random.Generator) -> None:
        self.last_s: dict[str, float] = {}  # of each sequence that has drawn a token
        self.gaps_s: list[float] = []
        self.ended: set[str] = set()
        self._engine = engine
        self._sampling = sampling
        self._rng = rng
        self._names: set[str] = set()

    def room(self, prompt_tokens: int) -> int:
        """Tokens that a prompt of this length can be answered with."""
        return self._engine.core.max_model_len - prompt_tokens

    def add(self, prompt_tokens: int, max_tokens: int) -> str:
        """Queue a random prompt. Returns its request id."""
        ids = self._rng.integers(0, self._engine.tokenizer.vocab_size, prompt_tokens).tolist()
        name = f"interference-{len(self._names)}"
        params = msgspec.structs.replace(self._sampling, max_tokens=max_tokens)
        self._engine.core.add(Sequence(name, ids, params))
        self._names.add(name)
        return name

    def abort_all(self) -> None:
        """The streams would go on to the end of the context."""
        for name in self._names - self.ended:
            self._engine.core.abort(name)

    def step(self) -> None:
        updates = self._engine.core.step()
        now = time.perf_counter()
        for update in updates:
            name = update.sequence.request_id
            if update.failure is not None:
                raise GenerationError(f"request {name}: {update.failure.message}")
            if name in self.last_s:
                self.gaps_s.append(now - self.last_s[name])
            self.last_s[name] = now
            if update.finish_reason is not None:
                self.ended.add(name)

    def step_until(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            self.step()
