"""Engines take turns, A B C B C A: what slows the machine for a while slows every engine's round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from trivet_bars.bars import BARS
from trivet_bars.engines import TRIVET, Engine
from trivet_bars.ladder import Measure

from trivet.bench.arrivals import Arrivals
from trivet.bench.figures import Figures, figures_of, medians, single_stream_figures
from trivet.bench.load import WARM_UP_TOKENS
from trivet.bench.suite import Rung
from trivet.bench.workload import Lengths, Seeds, Shape, drawn

# Runs of a measure have numbers; those of warming up are behind all others.
WARM_UP_RUN = 10_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What an engine brought in one round of a measure."""

    engine: str
    measure: str
    round_number: int
    busy_before: float  # share of the cores that something else took just before
    figures: Figures


class ShortAnswer(RuntimeError):
    """An engine answered with less than it was asked for: it would look fast."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One engine at one measure. Engines at the same measure have the same seeds, so the same prompts."""

    engine: Engine
    measure: Measure
    seeds: Seeds


def turns_of(rung: str, measures: Sequence[Measure], engines: Sequence[Engine], salt: int) -> list[Turn]:
    """Who is measured at a rung, side by side in one round.

    Peers take part where a bar compares them; what is sampled is compared with Trivet's own greedy speed.

    Args:
        engines: of one transport.
        salt: keeps the prompts of a run unknown to every prefix cache.
    """
    turns: list[Turn] = []
    for number, measure in enumerate(measures):
        if measure.rung.name != rung:
            continue
        seeds = Seeds(1000 * number, salt)
        for engine in engines:
            barred = {bar.measure.name for bar in BARS if bar.transport == engine.transport}
            is_compared = measure.name in barred and rung not in engine.skips
            if is_compared or (engine.name == TRIVET and rung in barred):
                turns.append(Turn(engine, measure, seeds))
    return turns


def take_turns(turns: Sequence[Turn], rounds: int, settle: Callable[[], float]) -> Iterable[Sample]:
    """Every turn once in each round, after a short one each to warm up. No prompt comes twice.

    Args:
        settle: waits until nothing else computes and returns the busy share that is left.

    Raises: ShortAnswer; EngineFailed; GenerationError.
    """
    for turn in turns:
        _one_run(turn, _shortened(turn.measure.rung), WARM_UP_RUN)
    for number in range(rounds):
        # Or the same engine would always follow upon the same other one.
        first_turn = number % max(1, len(turns))
        for turn in (*turns[first_turn:], *turns[:first_turn]):
            busy, measure = settle(), turn.measure
            first = number * measure.samples
            runs = [_one_run(turn, measure.rung.shape, first + part) for part in range(measure.samples)]
            yield Sample(turn.engine.name, measure.name, number, busy, medians(runs))


def _shortened(rung: Rung) -> Shape:
    output = min(rung.shape.output_tokens.high, WARM_UP_TOKENS)
    return replace(rung.shape, output_tokens=Lengths(output, output))


def _one_run(turn: Turn, shape: Shape, run: int) -> Figures:
    measure, load = turn.measure, turn.engine.load(turn.measure)
    workload = drawn(shape, load.form, load.id_range, turn.seeds)(run)
    arrivals = Arrivals(measure.rung.concurrency)
    done = load.run(workload, arrivals, turn.seeds.arrivals(run), lambda: None)
    figures = figures_of(done.timelines) | done.extra
    if figures["num_failed"] or figures["num_short"]:
        raise ShortAnswer(
            f"{turn.engine.name} at {measure.name}: of {figures['num_requests']:.0f} answers "
            f"{figures['num_failed']:.0f} failed and {figures['num_short']:.0f} were too short: "
            f"{next((t.failure for t in done.timelines if t.failure), 'no cause was told')}"
        )
    if measure.rung.concurrency == 1:
        figures = single_stream_figures(done.timelines) | figures
    return figures


def values_of(samples: Iterable[Sample], engine: str, measure: Measure) -> list[float]:
    """The figure that counts, round by round."""
    return [
        sample.figures[measure.figure]
        for sample in samples
        if sample.engine == engine and sample.measure == measure.name
    ]


def median_of(samples: Iterable[Sample], engine: str, measure: Measure) -> float | None:
    """None where the engine was not measured."""
    values = values_of(samples, engine, measure)
    return median(values) if values else None
