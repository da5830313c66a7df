"""The ladder of loads by which Trivet and its peers are compared, each the same in process and over HTTP.

one_stream          128 tokens in, 128 out, one at a time
prefill_1024        1,024 in, 1 out, one at a time: `prefill_tokens_per_s`
at_once_4, _16, _32 128 in, 128 out, so many requests sent together
shared_prefix_cold  16 requests together, 768 shared tokens + 32 of their own in, 32 out: `duration_s`
shared_prefix_warm  the same, and the prefix has been answered once before
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trivet.bench.arrivals import Arrivals
from trivet.bench.figures import Slo
from trivet.bench.load import Load, Measured, Scenario, measure
from trivet.bench.workload import Lengths, Seeds, Shape, drawn
from trivet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rung:
    """One load of the ladder."""

    name: str
    shape: Shape
    concurrency: int


def _shape(num_prompts: int, prompt_tokens: int, output_tokens: int) -> Shape:
    return Shape(num_prompts, Lengths(prompt_tokens, prompt_tokens), Lengths(output_tokens, output_tokens))


_SHARED = replace(_shape(16, 32, 32), prefix_tokens=768)
LADDER = (
    Rung("one_stream", _shape(1, 128, 128), 1),
    Rung("prefill_1024", _shape(1, 1024, 1), 1),
    Rung("at_once_4", _shape(4, 128, 128), 4),
    Rung("at_once_16", _shape(16, 128, 128), 16),
    Rung("at_once_32", _shape(32, 128, 128), 32),
    Rung("shared_prefix_cold", _SHARED, 16),
    Rung("shared_prefix_warm", replace(_SHARED, is_warm=True), 16),
)


def chosen(names: Sequence[str]) -> tuple[Rung, ...]:
    """All rungs, or those named, in the ladder's order. Raises: ConfigError."""
    known = [rung.name for rung in LADDER]
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name!r} is no scenario of the suite; choose from: {', '.join(known)}")
    return tuple(rung for rung in LADDER if not names or rung.name in names)


def run_suite(
    load: Load,
    rungs: Sequence[Rung],
    seeds: Seeds,
    repeats: int,
    slo: Slo | None = None,
    on_measured: Callable[[Rung, Measured], None] = lambda rung, measured: None,
) -> dict[str, Measured]:
    """Measure the rungs one after the other. Raises: GenerationError."""
    results = {}
    for number, rung in enumerate(rungs):
        # Another seed each: at_once_16 must not meet the prompts of at_once_4 in a prefix cache.
        own = Seeds(seeds.seed + 1000 * number, seeds.salt)
        workload_of = drawn(rung.shape, load.form, load.id_range, own)
        scenario = Scenario(rung.name, workload_of, Arrivals(rung.concurrency), slo)
        results[rung.name] = measure(load, scenario, own, repeats)
        on_measured(rung, results[rung.name])
    return results
