"""Where the time to the first token goes, and what would help: of the figures that a server keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trivet.client.observations import History, Series

PARTS = {
    "tokenize": "request_tokenize_time_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
}
TTFT = "time_to_first_token_seconds"
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
PROMPT_TOKENS = "request_prompt_tokens"
QUERIES, HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"
NAMES = (
    *(f"{metric}_{end}" for metric in (TTFT, *PARTS.values(), PROMPT_TOKENS) for end in ("sum", "count")),
    *GAUGES,
    QUERIES,
    HITS,
)
FULL_KV = 0.9
FEW_HITS = 0.2
SHORT_PROMPT = 100  # tokens: milliseconds of tokenising


@dataclass(frozen=True, slots=True)
class Verdict:
    """Means over the window, in seconds, and a sentence each."""

    num_requests: int
    ttft_s: float
    parts_s: Mapping[str, float]
    cause: str
    cure: str


def explain(history: History) -> Verdict | None:
    """None where no request has ended its wait in the window."""
    figures = _Figures(history)
    count = figures.gained(f"{TTFT}_count")
    if count < 1:
        return None
    parts = {part: figures.mean(metric) for part, metric in PARTS.items()}
    slowest = max(parts, key=lambda part: parts[part])
    explained = {"tokenize": _tokenize, "queue": _queue, "prefill": _prefill}[slowest](figures)
    return Verdict(round(count), figures.mean(TTFT), parts, *explained)


class _Figures:
    """Sums over all instances of what a history holds."""

    def __init__(self, history: History) -> None:
        self._by_name: dict[str, list[Series]] = {}
        for series in history.series:
            self._by_name.setdefault(series.name, []).append(series)

    def gained(self, name: str) -> float:
        """By how much a counter has grown; one that appears within the window began at nothing."""
        total = 0.0
        for series in self._by_name.get(name, ()):
            known = [value for value in series.values if value is not None]
            began_before = bool(series.values) and series.values[0] is not None
            total += known[-1] - (known[0] if began_before else 0.0) if known else 0.0
        return total

    def mean(self, metric: str) -> float:
        count = self.gained(f"{metric}_count")
        return self.gained(f"{metric}_sum") / count if count else 0.0

    def highest(self, name: str) -> float:
        values = (v for series in self._by_name.get(name, ()) for v in series.values if v is not None)
        return max(values, default=0.0)


def _tokenize(figures: _Figures) -> tuple[str, str]:
    tokens = figures.mean(PROMPT_TOKENS)
    cause = f"template and tokenizer take longest, for prompts of {tokens:,.0f} tokens in the mean"
    if tokens < SHORT_PROMPT:
        return (
            f"{cause}: the first request of a web process waits until they are read",
            "none, where later requests are faster (see it with a shorter --window); else raise web_workers",
        )
    return cause, "raise web_workers; shorten the prompts"


def _queue(figures: _Figures) -> tuple[str, str]:
    running, waiting = figures.highest(GAUGES[0]), figures.highest(GAUGES[1])
    kv_usage = figures.highest(GAUGES[2])
    waits = f"requests wait for their turn: up to {waiting:.0f} waited while {running:.0f} ran"
    if kv_usage >= FULL_KV:
        return (
            f"{waits}, and {kv_usage:.0%} of the KV cache was in use",
            "give the instance more memory (gpu_memory_utilization), or a smaller kv_cache_dtype; "
            "or add replicas: trivet scale NAME N",
        )
    return (
        f"{waits}, with {kv_usage:.0%} of the KV cache in use at most",
        "raise max_num_seqs; or add replicas: trivet scale NAME N",
    )


def _prefill(figures: _Figures) -> tuple[str, str]:
    tokens = figures.mean(PROMPT_TOKENS)
    asked, found = figures.gained(QUERIES), figures.gained(HITS)
    share = found / asked if asked else 0.0
    cause = (
        f"computing the prompts takes longest: {tokens:,.0f} tokens in the mean, {share:.0%} of what was "
        "looked up stood in the prefix cache"
    )
    if share < FEW_HITS:
        return cause, (
            "put what prompts share at their beginning, so that the prefix cache finds it; raise "
            "max_num_batched_tokens; or add replicas, or a faster device"
        )
    return cause, "raise max_num_batched_tokens; or add replicas, or a faster device"
