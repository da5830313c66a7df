"""Every metric that `/metrics` shows: name, kind, unit, labels, buckets. Kept here and nowhere else.

Names after the prefix, units and buckets are vLLM's where vLLM has the metric, so that dashboards made
for it work with the prefix changed. Counters are exposed with `_total`, as OpenMetrics asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "trivet:"


class Kind(StrEnum):
    """Of a metric, in Prometheus's words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of time series."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("model_name", "instance", "backend", "device")
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, without +Inf

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


_SECONDS = (0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, *_SECONDS, 160.0, 640.0, 2560.0)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, *_SECONDS)
_MINUTES = (15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, *_MINUTES)
_TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

# ---- reported by the engines -----------------------------------------------------------------------

NUM_REQUESTS_RUNNING = Metric("num_requests_running", Kind.GAUGE, "Sequences in the running batch.")
NUM_REQUESTS_WAITING = Metric("num_requests_waiting", Kind.GAUGE, "Sequences that wait to be scheduled.")
KV_CACHE_USAGE_PERC = Metric(
    "kv_cache_usage_perc", Kind.GAUGE, "Share of KV blocks held by sequences; 1 means all."
)
PREFIX_CACHE_QUERIES = Metric("prefix_cache_queries", Kind.COUNTER, "Prompt tokens looked up.")
PREFIX_CACHE_HITS = Metric("prefix_cache_hits", Kind.COUNTER, "Prompt tokens found in the prefix cache.")
NUM_PREEMPTIONS = Metric("num_preemptions", Kind.COUNTER, "Sequences put back to be computed again.")
NUM_PREEMPTIONS_SWAPPED = Metric(
    "num_preemptions_swapped", Kind.COUNTER, "Preemptions whose KV was copied to host memory instead."
)
NUM_REQUESTS_SWAPPED = Metric(
    "num_requests_swapped", Kind.GAUGE, "Waiting sequences whose KV is in host memory."
)
CPU_CACHE_USAGE_PERC = Metric(
    "cpu_cache_usage_perc", Kind.GAUGE, "Share of the swap space in use; 1 means all."
)
ADMISSION_REJECTIONS = Metric(
    "admission_rejections", Kind.COUNTER, "Sequences refused because the queue was full (429)."
)
DEADLINES_PASSED = Metric(
    "deadlines_passed", Kind.COUNTER, "Sequences whose request's timeout ended them, waiting or running."
)
PROMPT_TOKENS = Metric(
    "prompt_tokens", Kind.COUNTER, "Prompt tokens of requests that have begun; those of n completions once."
)
GENERATION_TOKENS = Metric("generation_tokens", Kind.COUNTER, "Tokens generated.")
REQUEST_SUCCESS = Metric(
    "request_success",
    Kind.COUNTER,
    "Sequences that ended, by reason.",
    ("model_name", "instance", "backend", "device", "finished_reason"),
)

# ---- measured by the web server --------------------------------------------------------------------

TIME_TO_FIRST_TOKEN = Metric(
    "time_to_first_token_seconds",
    Kind.HISTOGRAM,
    "From the request's arrival, before it is tokenised, to its first token.",
    buckets=_TTFT_S,
)
INTER_TOKEN_LATENCY = Metric(
    "inter_token_latency_seconds",
    Kind.HISTOGRAM,
    "Time between tokens of one sequence; a step that brings several counts once for each.",
    buckets=_TOKEN_S,
)
E2E_REQUEST_LATENCY = Metric(
    "e2e_request_latency_seconds",
    Kind.HISTOGRAM,
    "From the request's arrival to its last token.",
    buckets=_REQUEST_S,
)
REQUEST_PROMPT_TOKENS = Metric(
    "request_prompt_tokens", Kind.HISTOGRAM, "Prompt tokens of a finished sequence.", buckets=_TOKENS
)
REQUEST_GENERATION_TOKENS = Metric(
    "request_generation_tokens", Kind.HISTOGRAM, "Tokens generated for a finished sequence.", buckets=_TOKENS
)
TOKENIZE_TIME = Metric(
    "request_tokenize_time_seconds",
    Kind.HISTOGRAM,
    "Template and tokenizer, from the request's arrival until it is sent to an engine.",
    buckets=_TTFT_S,
)
REQUEST_QUEUE_TIME = Metric(
    "request_queue_time_seconds",
    Kind.HISTOGRAM,
    "Time that a sequence waited in its engine before its first step.",
    buckets=_TTFT_S,
)
REQUEST_PREFILL_TIME = Metric(
    "request_prefill_time_seconds",
    Kind.HISTOGRAM,
    "From the first step of a sequence to its first token.",
    buckets=_TTFT_S,
)
REQUEST_DECODE_TIME = Metric(
    "request_decode_time_seconds",
    Kind.HISTOGRAM,
    "From the first token of a sequence to its last.",
    buckets=_REQUEST_S,
)
REQUEST_FAILURES = Metric(
    "request_failures",
    Kind.COUNTER,
    "Requests of a deployed model that ended with an error, by its code; streams count, too.",
    ("model_name", "code"),
)
HTTP_REQUESTS = Metric(
    "http_requests", Kind.COUNTER, "Answered HTTP requests.", ("method", "route", "status")
)

# ---- state -----------------------------------------------------------------------------------------

SUPERVISOR_UP = Metric("supervisor_up", Kind.GAUGE, "1 while the supervisor answers, else 0.", ())
INSTANCE_STATE = Metric(
    "instance_state",
    Kind.GAUGE,
    "1 for the state that each instance is in, as the registry has it.",
    ("model_name", "instance", "state"),
)

# ---- devices, as the supervisor last probed them: no sample where that is long ago or not told ----

_DEVICE = ("backend", "device")
DEVICE_USABLE = Metric("device_usable", Kind.GAUGE, "1 for a device that can be used, else 0.", _DEVICE)
DEVICE_MEMORY_TOTAL = Metric(
    "device_memory_total_bytes", Kind.GAUGE, "Memory of a device, within the limits of its group.", _DEVICE
)
DEVICE_MEMORY_USED = Metric(
    "device_memory_used_bytes", Kind.GAUGE, "Memory in use on a device, by anybody.", _DEVICE
)
DEVICE_MEMORY_RESERVED = Metric(
    "device_memory_reserved_bytes", Kind.GAUGE, "Memory that the plans of live instances hold.", _DEVICE
)
DEVICE_UTILISATION = Metric(
    "device_utilisation_ratio", Kind.GAUGE, "Share of time in which a device's cores work; 1 is all.", _DEVICE
)
DEVICE_TEMPERATURE = Metric("device_temperature_celsius", Kind.GAUGE, "Temperature of a device.", _DEVICE)
DEVICE_POWER = Metric(
    "device_power_watts", Kind.GAUGE, "Power that a device takes; of some cards, at its first chip.", _DEVICE
)

METRICS: tuple[Metric, ...] = (
    NUM_REQUESTS_RUNNING,
    NUM_REQUESTS_WAITING,
    KV_CACHE_USAGE_PERC,
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    NUM_PREEMPTIONS,
    NUM_PREEMPTIONS_SWAPPED,
    NUM_REQUESTS_SWAPPED,
    CPU_CACHE_USAGE_PERC,
    ADMISSION_REJECTIONS,
    DEADLINES_PASSED,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    REQUEST_SUCCESS,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    E2E_REQUEST_LATENCY,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    TOKENIZE_TIME,
    REQUEST_QUEUE_TIME,
    REQUEST_PREFILL_TIME,
    REQUEST_DECODE_TIME,
    REQUEST_FAILURES,
    HTTP_REQUESTS,
    SUPERVISOR_UP,
    INSTANCE_STATE,
    DEVICE_USABLE,
    DEVICE_MEMORY_TOTAL,
    DEVICE_MEMORY_USED,
    DEVICE_MEMORY_RESERVED,
    DEVICE_UTILISATION,
    DEVICE_TEMPERATURE,
    DEVICE_POWER,
)
