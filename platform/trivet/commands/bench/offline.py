"""`trivet bench latency` and `throughput`: the engine in this process, without HTTP."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trivet.commands.bench.report import machine, report
from trivet.commands.bench.timeline import (
    Figures,
    Timeline,
    figures_of,
    random_prompt,
    single_stream_figures,
)
from trivet.commands.connecting import local_model, parse_pairs
from trivet.demo_model import find_demo_model
from trivet.engine.sequence import Sequence as EngineSequence
from trivet.errors import GenerationError, Overloaded
from trivet.llm import LLM
from trivet.sampling_params import SamplingParams
from trivet.text.text_stream import TextStream

if TYPE_CHECKING:
    from trivet.engine.assembly import Engine


def bench_latency(given: argparse.Namespace) -> int:
    """One request at a time: speed of prefill and decode, TTFT, TPOT, ITL."""
    return _bench(given, "latency", num_prompts=1)


def bench_throughput(given: argparse.Namespace) -> int:
    """All requests at once: output tokens per second of the whole batch."""
    return _bench(given, "throughput", num_prompts=given.num_prompts)


def _bench(given: argparse.Namespace, kind: str, num_prompts: int) -> int:
    settings = parse_pairs(given.pairs)
    before = machine()
    model = find_demo_model() if given.model is None else local_model(given.model)
    start = time.perf_counter()
    with LLM(model, backend=given.backend, device=given.device, **settings) as llm:
        load_s = time.perf_counter() - start
        runs = [_one_run(llm.engine, given, num_prompts, run) for run in range(given.repeats + 1)][1:]
        config = {
            "model": llm.engine.files.name,
            "quantization": llm.engine.files.quantization,
            "backend": llm.engine.placement.backend.name,
            "prompt_tokens": given.prompt_tokens,
            "output_tokens": given.output_tokens,
            "num_prompts": num_prompts,
            "settings": settings or None,
        }
    once = {"load_s": load_s, "peak_rss_bytes": peak_rss_bytes()}
    report(kind, config, [{**run, **once} for run in runs], before, given.json)
    return 0


def _one_run(engine: Engine, given: argparse.Namespace, num_prompts: int, run: int) -> Figures:
    rng = np.random.default_rng([given.seed, run])
    last_id = engine.tokenizer.vocab_size
    prompts = [random_prompt(rng, given.prompt_tokens, 0, last_id) for _ in range(num_prompts)]
    timelines = run_batch(engine, prompts, given.output_tokens, f"bench-{run}")
    figures = figures_of(timelines)
    return single_stream_figures(timelines) | figures if num_prompts == 1 else figures


def run_batch(
    engine: Engine, prompts: Sequence[Sequence[int]], output_tokens: int, name: str
) -> list[Timeline]:
    """Generate greedily from all prompts, submitted together, with detokenising as in serving.

    Raises: GenerationError where a sequence fails; ContextLengthExceeded.
    """
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    start = time.perf_counter()
    timelines = {f"{name}-{i}": Timeline(start, len(prompt)) for i, prompt in enumerate(prompts)}
    waiting = [
        EngineSequence(key, list(prompt), params, text=TextStream(engine.tokenizer, list(prompt), params))
        for key, prompt in zip(timelines, prompts, strict=True)
    ][::-1]
    while waiting or engine.core.has_work:
        try:
            while waiting:
                engine.core.add(waiting[-1])
                waiting.pop()
        except Overloaded:
            pass  # the engine's queue is full; the rest stays in ours
        updates = engine.core.step()
        now = time.perf_counter()
        for update in updates:
            if update.failure is not None:
                raise GenerationError(f"request {update.sequence.request_id}: {update.failure.message}")
            timelines[update.sequence.request_id].add(now, len(update.token_ids))
    return list(timelines.values())


def peak_rss_bytes() -> int:
    """The largest resident size of this process so far; Linux counts in KiB (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
