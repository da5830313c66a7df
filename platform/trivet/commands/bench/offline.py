"""`trivet bench latency` and `throughput`: the engine in this process, without HTTP."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from trivet.bench.engine_load import EngineLoad
from trivet.bench.figures import Figures
from trivet.bench.interference import Disturbance, interfere
from trivet.bench.load import Measured, measure
from trivet.bench.machine import machine
from trivet.bench.suite import chosen, run_suite
from trivet.commands.bench.options import load_config, scenario, seeds, shape, slo
from trivet.commands.bench.report import Report, suite_report
from trivet.commands.connecting import given_settings, local_model
from trivet.demo_model import find_demo_model
from trivet.engine.assembly import Engine
from trivet.engine.placement import Placement
from trivet.errors import ConfigError
from trivet.llm import LLM
from trivet.sampling_params import SamplingParams

ARRIVING_PROMPTS = 4  # of a run


def bench_latency(given: argparse.Namespace) -> int:
    """One request at a time: speed of prefill and decode, TTFT, TPOT, ITL."""
    return _bench(given, "latency")


def bench_throughput(given: argparse.Namespace) -> int:
    """Many requests at once: output tokens per second of the whole batch, and the KV cache's use."""
    return _bench(given, "throughput")


def bench_interference(given: argparse.Namespace) -> int:
    """ITL of decoding streams while prompts arrive, for each step budget; the model is loaded anew for it.

    Raises: ConfigError for a budget that the streams take whole: no prompt would ever be computed.
    """
    least, streams = min(given.budgets), given.streams
    if least <= streams:
        raise ConfigError(
            f"--budgets {least} leaves a step no token for a prompt beside {streams} streams; "
            f"take budgets above {streams}, or fewer --streams"
        )
    before = machine()
    config: dict[str, object] = {}
    points = []
    disturbance = Disturbance(given.streams, ARRIVING_PROMPTS, given.arriving_tokens)
    for budget in given.budgets:
        with loaded(given, max_num_batched_tokens=budget) as llm:
            config = engine_config(llm.engine, given)
            runs = [_disturbed(llm, disturbance, given, budget, run) for run in range(given.repeats + 1)][1:]
        measured = Measured(runs, {}, is_counted_by_server=True)
        points.append({"max_num_batched_tokens": budget, **measured.as_json()})
    config |= {"streams": given.streams, "arriving_tokens": given.arriving_tokens, "seed": given.seed}
    del config["max_num_batched_tokens"]
    Report("interference", config, before, {"points": points}).show(given)
    return 0


def _disturbed(
    llm: LLM, disturbance: Disturbance, given: argparse.Namespace, budget: int, run: int
) -> Figures:
    label = f"budget {budget} {'warm-up' if run == 0 else f'run {run}'}"
    if run == 0:
        disturbance = replace(disturbance, num_prompts=1)
    rng = np.random.default_rng([given.seed, budget, run])
    with tqdm(total=disturbance.num_prompts, desc=label, unit="prompt", disable=None, leave=False) as bar:
        return interfere(llm.engine, disturbance, sampling(given), rng, bar.update)


def _bench(given: argparse.Namespace, kind: str) -> int:
    before = machine()
    rungs = chosen([name for name in given.only.split(",") if name])
    start = time.perf_counter()
    with loaded(given) as llm:
        load_s = time.perf_counter() - start
        check_lengths(given, llm.engine.core.max_model_len)
        load = EngineLoad(llm, sampling(given))
        if given.suite:
            results = run_suite(load, rungs, seeds(given), given.repeats, slo(given))
            report = suite_report(kind, engine_config(llm.engine, given), before, results)
        else:
            what = scenario(given, load.form, load.id_range, None)
            measured = measure(load, what, seeds(given), given.repeats)
            report = Report(kind, engine_config(llm.engine, given), before, measured.as_json())
        report.config |= load_config(given)
    report.figures |= {"load_s": round(load_s, 3), "peak_rss_bytes": peak_rss_bytes()}
    report.show(given)
    return 0


def check_lengths(given: argparse.Namespace, max_model_len: int) -> None:
    """Raises: ConfigError where requests would be refused, or end before they have drawn all their tokens."""
    if given.suite or given.workload == "jsonl":
        return
    most = shape(given).most_tokens
    if most > max_model_len:
        raise ConfigError(
            f"the longest request may take {most} tokens, prompt and answer, and the context is "
            f"{max_model_len}; lower --prompt-tokens or --output-tokens, or raise the context with "
            "--set max_model_len=N"
        )


def sampling(given: argparse.Namespace) -> SamplingParams:
    """Of every request. Raises: RequestError."""
    params = SamplingParams(temperature=given.temperature, top_p=given.top_p, ignore_eos=True)
    params.check()
    return params


@contextmanager
def loaded(given: argparse.Namespace, **settings: object) -> Iterator[LLM]:
    """The model of the command line; `settings` beat its own."""
    model = model_path(given)
    chosen = {**given_settings(given), **{name: str(value) for name, value in settings.items()}}
    with LLM(model, backend=given.backend, device=given.device, **chosen) as llm:
        yield llm


def model_path(given: argparse.Namespace) -> Path:
    """The demo model where none is named."""
    return find_demo_model() if given.model is None else local_model(given.model)


def engine_config(engine: Engine, given: argparse.Namespace) -> dict[str, object]:
    """What runs: the model, its weights, the backend and its threads."""
    placement = engine.placement
    settings = given_settings(given)
    return {
        "model": engine.files.name,
        "quantization": engine.files.quantization,
        "backend": placement.backend.name,
        "device": placement.devices[0].name,
        "device_arch": placement.devices[0].arch,
        "num_threads": num_threads(placement, settings),
        "kv_dtype": placement.plan.kv.groups[0].dtype,
        "max_num_batched_tokens": placement.plan.max_num_batched_tokens,
        "max_model_len": engine.core.max_model_len,
        "settings": settings or None,
    }


def num_threads(placement: Placement, settings: Mapping[str, str]) -> int | None:
    """What the settings ask for, else what the backend takes of this machine; None where it has none."""
    own = placement.backend.launch_env(placement.devices).get("OMP_NUM_THREADS")
    given = settings.get("num_threads") or own
    return int(given) if given else None


def peak_rss_bytes() -> int:
    """The largest resident size of this process so far; Linux counts in KiB (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
