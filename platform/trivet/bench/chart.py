"""What a benchmark's report looks like as a chart, whatever draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivet.bench.figures import PERCENTILES, SERIES

# The figure by which a scenario of the suite is read; the first that it has.
KEY_FIGURES = ("decode_tokens_per_s", "prefill_tokens_per_s", "output_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one colour, one for each category; None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars or lines over categories."""

    title: str
    subtitle: str
    x_label: str
    y_label: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    is_line: bool = False
    is_log: bool = False  # of the y axis

    @property
    def values(self) -> list[float]:
        """All of them that can be drawn."""
        drawn = (v for series in self.series for v in series.values if v is not None)
        return [value for value in drawn if value > 0 or not self.is_log]


def chart_of(report: Mapping[str, Any]) -> Chart:
    """The chart of a report whose keys `trivet.bench` documents."""
    makers = {"suite": _suite, "interference": _interference, "startup": _startup}
    return makers.get(report["benchmark"], _latencies)(report)


def _titles(report: Mapping[str, Any], what: str) -> tuple[str, str]:
    config, machine = report["config"], report["machine"]
    isa = " ".join(machine["isa"][-2:])
    title = f"{config['model']}: {what}"
    return title, f"{machine['cpu']}, {machine['cores']} cores, {isa}; trivet {machine['trivet']}"


def _latencies(report: Mapping[str, Any]) -> Chart:
    names = [name for name in SERIES if f"{name}_p50" in report]
    series = [Series(f"p{p}", tuple(report[f"{name}_p{p}"] for name in names)) for p in PERCENTILES]
    rate = f"{report['output_tokens_per_s']:,.1f} output tokens/s"
    titles = _titles(report, f"{report['benchmark']}, {rate}")
    labels = tuple(name.removesuffix("_ms").upper() for name in names)
    return Chart(*titles, "", "ms", labels, tuple(series), is_log=True)


def _suite(report: Mapping[str, Any]) -> Chart:
    scenarios = report["scenarios"]
    values = tuple(
        next((figures[key] for key in KEY_FIGURES if key in figures), None) for figures in scenarios.values()
    )
    titles = _titles(report, f"suite ({report['mode']})")
    names = tuple(name.replace("_", " ") for name in scenarios)
    label = "tokens/s (one stream: decode; prefill: prompt)"
    return Chart(*titles, "", label, names, (Series("tokens/s", values),))


def _interference(report: Mapping[str, Any]) -> Chart:
    points = report["points"]
    lines = (
        ("ITL p50", "itl_ms_p50"),
        ("ITL p99", "itl_ms_p99"),
        ("ITL p50 without prompts", "quiet_itl_ms_p50"),
        ("TTFT p50 of the prompts", "ttft_ms_p50"),
    )
    series = tuple(Series(name, tuple(point[key] for point in points)) for name, key in lines)
    config = report["config"]
    what = f"{config['streams']} streams while prompts of {config['arriving_tokens']} tokens arrive"
    budgets = tuple(str(point["max_num_batched_tokens"]) for point in points)
    label = "tokens of a step (max_num_batched_tokens)"
    return Chart(*_titles(report, what), label, "ms", budgets, series, is_line=True, is_log=True)


def _startup(report: Mapping[str, Any]) -> Chart:
    phases = [key.removeprefix("phase_").removesuffix("_s") for key in report if key.startswith("phase_")]
    values = tuple(report[f"phase_{phase}_s"] for phase in phases)
    titles = _titles(report, f"start-up, {report['startup_s']:.2f} s to the first token")
    names = tuple(phase.replace("_", " ") for phase in phases)
    return Chart(*titles, "", "seconds", names, (Series("seconds", values),))


def ticks(values: Sequence[float], is_log: bool) -> list[float]:
    """Round numbers that enclose the values: 1, 2 or 5 times a power of ten; decades on a log axis."""
    if not values:
        return [1.0, 10.0] if is_log else [0.0, 1.0]
    high = max(values)
    if is_log:
        low_power, high_power = _power(min(values)), _power(high)
        if 10.0**high_power < high or high_power == low_power:
            high_power += 1
        return [10.0**power for power in range(low_power, high_power + 1)]
    raw = (high or 1.0) / 5
    step = next(m * 10.0 ** _power(raw) for m in (1, 2, 5, 10) if m * 10.0 ** _power(raw) >= raw)
    return [step * i for i in range(max(2, int(-(-high // step)) + 1))]


def _power(value: float) -> int:
    """Of the largest power of ten that is not above the value."""
    return int(f"{value:e}".partition("e")[2])


def value_text(value: float) -> str:
    """Beside a bar or a point: three digits, or all of a large number's whole ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(chart: Chart, file: Path) -> None:
    """Write the chart as SVG or PNG, by the file's suffix. Raises: OSError."""
    if file.suffix.lower() == ".svg":
        from trivet.bench.svg_chart import svg

        file.write_text(svg(chart), encoding="utf-8")
    else:
        from trivet.bench.png_chart import write_png

        write_png(chart, file)
