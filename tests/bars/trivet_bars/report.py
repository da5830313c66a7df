"""The result of a comparison: as a table for people, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from trivet_bars.bars import Goal, Outcome, Transport, Verdict
from trivet_bars.ladder import MEASURES
from trivet_bars.limits import Limits
from trivet_bars.quiet import MAX_BUSY
from trivet_bars.rounds import Sample, median_of


@dataclass(frozen=True, slots=True)
class Taken:
    """An engine that took part."""

    name: str
    transport: Transport
    command: str
    versions: Mapping[str, str]
    peak_rss_bytes: int


@dataclass(slots=True)
class Comparison:
    """Everything of one run."""

    machine: Mapping[str, object]
    threads: int
    rounds: int
    missing: list[str] = field(default_factory=list)  # peers that are not installed, or do not start
    engines: list[Taken] = field(default_factory=list)
    samples: dict[Transport, list[Sample]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    limits: Limits | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        return [*(o.verdict for o in self.outcomes), *(goal.verdict for goal in self.goals)]

    @property
    def exit_code(self) -> int:
        """0: all is met; 1: a bar is not met; 3: what was measured is met, and something was not measured."""
        if Verdict.NOT_MET in self.verdicts:
            return 1
        return 3 if Verdict.NOT_MEASURED in self.verdicts else 0


def table(result: Comparison) -> str:
    """Bars, goals, every figure, then versions and commands."""
    lines = [
        f"{result.machine.get('cpu')}, {result.threads} threads; "
        f"medians of {result.rounds} rounds in which the engines took turns",
        *_limits(result.limits),
        *_noise(result),
        "",
        *_outcomes(result.outcomes),
        "",
        *_goals(result.goals),
        "",
        *_figures(result),
        "",
        *_engines(result),
    ]
    return "\n".join(lines)


def _limits(limits: Limits | None) -> list[str]:
    if limits is None:
        return []
    return [
        f"limits: {limits.read_gb_per_s:.1f} GB/s read, {limits.int8_gop_per_s:.0f} GOP/s int8, "
        f"{limits.bf16_gflop_per_s:.0f} GFLOP/s bf16"
    ]


def _noise(result: Comparison) -> list[str]:
    """What else ran: a figure of a busy machine tells of the machine."""
    shares = [sample.busy_before for samples in result.samples.values() for sample in samples]
    if not shares:
        return []
    noisy = sum(share > MAX_BUSY for share in shares)
    return [
        f"cores busy with something else before a sample: {max(shares):.0%} at most, "
        f"above {MAX_BUSY:.0%} before {noisy} of {len(shares)}"
    ]


def _outcomes(outcomes: Sequence[Outcome]) -> list[str]:
    rows = [("against the best peer", "Trivet", "peer", "", "ratio", "bar", "")]
    rows += [
        (
            f"{outcome.bar.transport}: {outcome.bar.measure.title} ({outcome.bar.measure.unit})",
            number(outcome.trivet),
            number(outcome.peer),
            outcome.peer_name or "",
            number(outcome.ratio),
            f"{outcome.bar.factor:.2f}",
            str(outcome.verdict),
        )
        for outcome in outcomes
    ]
    return aligned(rows)


def _goals(goals: Sequence[Goal]) -> list[str]:
    rows = [("by itself", "Trivet", "bar", "", "")]
    rows += [
        (
            goal.title,
            f"{number(goal.value)} {goal.unit}",
            f"{'at most' if goal.is_at_most else 'at least'} {goal.limit:g}",
            str(goal.verdict),
            goal.note,
        )
        for goal in goals
    ]
    return aligned(rows)


def _figures(result: Comparison) -> list[str]:
    lines = []
    for transport, samples in result.samples.items():
        engines = [taken.name for taken in result.engines if taken.transport == transport]
        rows = [(f"{transport}: medians", *engines)]
        for measure in MEASURES.values():
            values = [median_of(samples, engine, measure) for engine in engines]
            if any(value is not None for value in values):
                rows.append((f"{measure.title} ({measure.unit})", *(number(value) for value in values)))
        peaks = {taken.name: taken.peak_rss_bytes for taken in result.engines if taken.transport == transport}
        rows.append(("peak resident (MB)", *(f"{peaks[engine] / 1e6:.0f}" for engine in engines)))
        lines += [*aligned(rows), ""]
    return lines[:-1]


def _engines(result: Comparison) -> list[str]:
    lines = [
        f"{taken.name}, {taken.transport}: {', '.join(' '.join(part) for part in taken.versions.items())}\n"
        f"    {taken.command}"
        for taken in result.engines
    ]
    if result.missing:
        lines.append(f"without: {', '.join(result.missing)}")
    return lines


def number(value: float | None) -> str:
    """Three significant digits or all whole ones; `-` for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width; the first and those that hold words are set to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 or cell[:1].isalpha() else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def as_json(result: Comparison) -> dict[str, object]:
    """The same with every sample."""
    return {
        "machine": dict(result.machine),
        "threads": result.threads,
        "rounds": result.rounds,
        "limits": None if result.limits is None else asdict(result.limits),
        "missing": result.missing,
        "engines": [asdict(taken) for taken in result.engines],
        "bars": [
            {
                "transport": outcome.bar.transport,
                "measure": outcome.bar.measure.name,
                "unit": outcome.bar.measure.unit,
                "trivet": outcome.trivet,
                "peer": outcome.peer,
                "peer_name": outcome.peer_name,
                "ratio": outcome.ratio,
                "bar": outcome.bar.factor,
                "verdict": outcome.verdict,
            }
            for outcome in result.outcomes
        ],
        "goals": [{**asdict(goal), "verdict": goal.verdict} for goal in result.goals],
        "samples": {
            transport: [asdict(sample) for sample in samples] for transport, samples in result.samples.items()
        },
    }
