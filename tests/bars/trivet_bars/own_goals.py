"""What Trivet keeps without any peer: limits of the machine, host work, start, memory, KV waste, threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from trivet_bars.bars import Goal
from trivet_bars.engines import TRIVET, python_path
from trivet_bars.host_work import BATCH, WAITING
from trivet_bars.ladder import MEASURES
from trivet_bars.limits import Limits
from trivet_bars.peer_kinds import pinned_threads
from trivet_bars.rounds import Sample, median_of, values_of

TIMEOUT_S = 600.0
MEAN_CONTEXT = 192  # tokens: 128 of the prompt and on average half of 128 generated
MIXED_LOAD = ("--prompt-tokens", "16:768", "--output-tokens", "16:128", "-n", "64", "--repeats", "1")
LARGE_PART_BYTES = 50_000_000
MAX_SAMPLED_SLOWDOWN_PERCENT = 5.0
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """What the commands told; an empty mapping: not measured."""

    host: Mapping[str, float]
    startup: Mapping[str, float]
    mixed: Mapping[str, float]
    threads: Mapping[str, float] = field(default_factory=dict)  # one stream's tokens/s by `num_threads`


def measure_own(
    model: Path, settings: Mapping[str, str], threads: int, settle: Callable[[], object]
) -> OwnFigures:
    """Run the commands one after the other; `settle` waits for a quiet machine before each.

    Raises: subprocess.CalledProcessError.
    """
    pairs = [f"{key}={value}" for key, value in settings.items()]
    flags = [word for pair in pairs for word in ("--set", pair)]
    trivet = str(Path(sys.executable).with_name("trivet"))
    commands = (
        [sys.executable, "-m", "trivet_bars.host_work", str(model), *pairs],
        [trivet, "bench", "startup", str(model), *flags, "--json"],
        [trivet, "bench", "throughput", str(model), *flags, *MIXED_LOAD, "--json"],
    )
    told = []
    for command in commands:
        settle()
        told.append(_figures(command, threads))
    rates = {}
    for count in (DEFAULT, *map(str, thread_counts(threads))):
        settle()
        chosen = [] if count == DEFAULT else ["--set", f"num_threads={count}"]
        figures = _figures([trivet, "bench", "latency", str(model), *flags, *chosen, "--json"], threads)
        rates[count] = figures["decode_tokens_per_s"]
    return OwnFigures(*told, rates)


def thread_counts(threads: int) -> list[int]:
    """Powers of two up to `threads`, and `threads`."""
    return sorted({2**power for power in range(threads.bit_length())} | {threads})


def _figures(command: Sequence[str], threads: int) -> dict[str, float]:
    env = {**os.environ, **pinned_threads(threads), "PYTHONPATH": python_path()}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=TIMEOUT_S)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    told = json.loads(done.stdout)
    return {name: value for name, value in told.items() if isinstance(value, int | float)}


def goals_of(
    in_process: Sequence[Sample], over_http: Sequence[Sample], limits: Limits | None, own: OwnFigures
) -> list[Goal]:
    """All goals; those whose figures are missing have no value."""
    return [
        _bandwidth_goal(in_process, limits, own.host),
        _gap_goal(own.host, 1, 0.3),
        _gap_goal(own.host, BATCH, 1.5),
        _flat_goal(own.host),
        *_sampled_goals("in process", in_process),
        *_sampled_goals("HTTP", over_http),
        _http_goal(in_process, over_http),
        Goal("start of the process to READY", own.startup.get("ready_s"), 1.5, "s"),
        *_memory_goals(own.startup),
        _waste_goal(own.mixed),
        _threads_goal(own.threads),
    ]


def _bandwidth_goal(samples: Sequence[Sample], limits: Limits | None, host: Mapping[str, float]) -> Goal:
    """Every weight is read once a token, and the keys and values of its context."""
    title, value, note = "one stream, of the bound by bandwidth", None, ""
    rate = median_of(samples, TRIVET, MEASURES["one_stream"])
    if rate is not None and limits is not None and "weights_bytes" in host:
        touched = host["weights_bytes"] + MEAN_CONTEXT * host["kv_bytes_per_token"]
        bound = limits.read_gb_per_s * 1e9 / touched
        value = 100 * rate / bound
        note = f"bound {bound:.0f} tokens/s: {limits.read_gb_per_s:.1f} GB/s, {touched / 1e6:.0f} MB a token"
    return Goal(title, value, 75.0, "%", is_at_most=False, note=note)


def _gap_goal(host: Mapping[str, float], batch: int, limit_ms: float) -> Goal:
    """What the host does while kernels compute holds up nothing; it is told beside."""
    title = f"host work between the kernels of two steps, batch {batch}"
    note = f"{host[f'host_ms_{batch}']:.2f} ms of host work in all" if f"host_ms_{batch}" in host else ""
    return Goal(title, host.get(f"gap_ms_{batch}"), limit_ms, "ms", note=note)


def _flat_goal(host: Mapping[str, float]) -> Goal:
    """Of all host work. A tenth more than with an empty queue counts as flat: medians move so much."""
    idle, crowded = host.get(f"host_ms_{BATCH}"), host.get(f"host_ms_{BATCH}_waiting")
    value = None if idle is None or crowded is None else 100 * (crowded / idle - 1)
    note = "" if crowded is None else f"{crowded:.2f} ms"
    return Goal(f"host work with {WAITING:,} waiting: more", value, 10.0, "%", note=note)


def _sampled_goals(transport: str, samples: Sequence[Sample]) -> list[Goal]:
    """By how much temperature 0.7 and top_p 0.9 are slower than greedy, in rounds of one run."""
    goals = []
    for name in ("one_stream", "at_once_16", "at_once_32"):
        greedy = values_of(samples, TRIVET, MEASURES[name])
        sampled = values_of(samples, TRIVET, MEASURES[f"{name}_sampled"])
        pairs = list(zip(greedy, sampled, strict=False))
        value = median(100 * (1 - slow / fast) for fast, slow in pairs) if pairs else None
        title = f"sampled slower than greedy, {transport}, {MEASURES[name].title}"
        goals.append(Goal(title, value, MAX_SAMPLED_SLOWDOWN_PERCENT, "%"))
    return goals


def _http_goal(in_process: Sequence[Sample], over_http: Sequence[Sample]) -> Goal:
    inside = median_of(in_process, TRIVET, MEASURES["at_once_32"])
    outside = median_of(over_http, TRIVET, MEASURES["at_once_32"])
    value = None if inside is None or outside is None else 100 * outside / inside
    return Goal("32 at once over HTTP, of in process", value, 92.0, "%", is_at_most=False)


def _memory_goals(startup: Mapping[str, float]) -> list[Goal]:
    """What is resident beside KV after the first token, and how much of it no large part accounts for."""
    resident = startup.get("rss_after_first_token_bytes")
    parts = {
        name.removeprefix("memory_").removesuffix("_bytes"): size
        for name, size in startup.items()
        if name.startswith("memory_") and name.endswith("_bytes")
    }
    if resident is None:
        return [Goal("resident beside KV", None, 500.0, "MB"), Goal("of it without a name", None, 50.0, "MB")]
    beside = resident - parts.pop("kv", 0.0)
    parts["interpreter and imports"] = startup.get("rss_after_imports_bytes", 0.0)
    named = sum(parts.values())
    large = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in parts.items() if size > LARGE_PART_BYTES)
    return [
        Goal("resident beside KV", beside / 1e6, 500.0, "MB", note=f"above 50 MB: {large}"),
        Goal("of it without a name", max(0.0, beside - named) / 1e6, LARGE_PART_BYTES / 1e6, "MB"),
    ]


def _waste_goal(mixed: Mapping[str, float]) -> Goal:
    note = ""
    if "kv_sequences_fit" in mixed:
        note = (
            f"{mixed['kv_sequences_fit']:.0f} such sequences fit, "
            f"{mixed['kv_sequences_fit_contiguous']:.0f} with contiguous reservation"
        )
    return Goal("KV waste under a mixed load", mixed.get("kv_waste_percent"), 4.0, "%", note=note)


def _threads_goal(rates: Mapping[str, float]) -> Goal:
    """More threads may be slower than fewer; what nobody has set is near the best."""
    value = 100 * rates[DEFAULT] / max(rates.values()) if rates else None
    note = ", ".join(f"{count}: {rate:.0f} tokens/s" for count, rate in rates.items())
    return Goal("num_threads as it is by default, of the best", value, 90.0, "%", is_at_most=False, note=note)
