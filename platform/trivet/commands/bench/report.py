"""How `trivet bench` prints: a table for people, JSON for programs, a chart for both."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from trivet.bench.chart import chart_of, draw
from trivet.bench.figures import PERCENTILES, SERIES
from trivet.bench.load import Measured
from trivet.commands.output import bytes_text, note, print_json, print_table
from trivet.errors import ConfigError

# Figures of the first table, as far as a report has them; the order of printing.
RATES = (
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "goodput_requests_per_s",
    "duration_s",
    "ready_s",
    "startup_s",
    "load_s",
    "first_token_s",
    "kv_waste_percent",
    "kv_sequences_fit",
    "kv_sequences_fit_contiguous",
    "client_cpu_us_per_token",
    "peak_rss_bytes",
)
PART_PREFIXES = ("phase_", "rss_", "memory_")  # of a start-up: printed as they come
SUITE_COLUMNS = (
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "output_tokens_per_s",
    "duration_s",
    "ttft_ms_p50",
)
POINT_COLUMNS = (
    "max_num_batched_tokens",
    "itl_ms_p50",
    "itl_ms_p99",
    "quiet_itl_ms_p50",
    "ttft_ms_p50",
    "prefill_tokens_per_s",
)


@dataclass(slots=True)
class Report:
    """One benchmark's result. `machine` is from before the first run."""

    benchmark: str
    config: dict[str, object]
    machine: Mapping[str, object]
    figures: dict[str, Any]

    def as_json(self) -> dict[str, object]:
        """The keys that `trivet.bench` documents."""
        config = {name: value for name, value in self.config.items() if value is not None}
        head = {"benchmark": self.benchmark, "command": " ".join(["trivet", *sys.argv[1:]])}
        return {**head, "machine": self.machine, "config": config, **self.figures}

    def show(self, given: argparse.Namespace) -> None:
        """On standard output, and in the files that the command line names. Raises: ConfigError."""
        value = self.as_json()
        if given.plot is not None:
            draw_to(value, given.plot)
        if given.output is not None:
            _write(given.output, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        if given.json:
            print_json(value)
        else:
            self._print()

    def _print(self) -> None:
        print(f"{self.benchmark}: {', '.join(_pairs(self.config))}")
        machine = self.machine
        isa = " ".join(str(flag) for flag in machine["isa"])  # type: ignore[attr-defined]
        print(f"{machine['cpu']}, {machine['cores']} cores, {isa}; load {machine['load_average']} before")
        if "scenarios" in self.figures:
            _print_scenarios(self.figures["scenarios"])
        elif "points" in self.figures:
            _print_points(self.figures["points"])
        else:
            _print_figures(self.figures)


def suite_report(
    mode: str, config: dict[str, object], before: Mapping[str, object], results: Mapping[str, Measured]
) -> Report:
    """All scenarios of a suite as one report."""
    scenarios = {name: measured.as_json() for name, measured in results.items()}
    return Report("suite", config, before, {"mode": mode, "scenarios": scenarios})


def _print_figures(figures: Mapping[str, Any]) -> None:
    spread = figures.get("spread", {})
    names = [name for name in RATES if name in figures]
    names += [name for name in figures if name.startswith(PART_PREFIXES)]
    values = [
        (
            name,
            _text(name, figures[name]),
            " to ".join(_text(name, end) or "" for end in spread.get(name, ())),
        )
        for name in names
    ]
    print_table(("figure", f"median of {figures.get('num_runs', 1)} runs", "spread"), values)
    rows = [
        (name, *(f"{figures[f'{name}_p{p}']:,.2f}" for p in PERCENTILES))
        for name in (*SERIES, "send_lag_ms")
        if f"{name}_p50" in figures
    ]
    if rows:
        print_table(("latency", *(f"p{p}" for p in PERCENTILES)), rows)
    _print_doubts("", figures)


def _print_scenarios(scenarios: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        (name, *(_text(column, figures.get(column)) for column in SUITE_COLUMNS))
        for name, figures in scenarios.items()
    ]
    print_table(("scenario", *SUITE_COLUMNS), rows)
    for name, figures in scenarios.items():
        _print_doubts(f"{name}: ", figures)


def _print_points(points: Sequence[Mapping[str, Any]]) -> None:
    rows = [tuple(_text(column, point.get(column)) for column in POINT_COLUMNS) for point in points]
    print_table(POINT_COLUMNS, rows)


def _print_doubts(label: str, figures: Mapping[str, Any]) -> None:
    """What a reader has to know before comparing."""
    failures: Mapping[str, int] = figures.get("failures", {})
    for cause, times in failures.items():
        print(f"{label}{times} failed: {cause}")
    if figures.get("num_short"):
        print(
            f"{label}{figures['num_short']:g} of {figures['num_requests']:g} answers were shorter than asked"
        )
    if cached := figures.get("cached_prompt_tokens"):
        of = f"{cached:,.0f} of {figures['prompt_tokens']:,.0f}"
        print(f"{label}{of} prompt tokens came from a prefix cache")
    if not str(figures.get("tokens_counted_by", "usage")).startswith("usage"):
        print(f"{label}tokens are estimated from the {figures['tokens_counted_by']}")


def _text(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return bytes_text(int(value))
    return f"{value:,.2f}".removesuffix(".00")  # a count has no decimals


def _pairs(config: Mapping[str, object]) -> list[str]:
    return [f"{key} {value}" for key, value in config.items() if value is not None]


def draw_to(report: Mapping[str, Any], file: Path) -> None:
    """Raises: ConfigError where it cannot be written."""
    try:
        draw(chart_of(report), file)
    except OSError as error:
        raise ConfigError(f"--plot {file} cannot be written: {error.strerror}") from error
    note(f"written: {file}")


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    note(f"written: {file}")


def check_files(plot: Path | None, output: Path | None) -> None:
    """Raises: ConfigError where no chart of this kind can be drawn, or nothing can be written there."""
    if plot is not None:
        _check_plot(plot)
    for option, file in (("--plot", plot), ("--output", output)):
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigError(f"{option} {file}: there is no folder {file.parent}")


def _check_plot(file: Path) -> None:
    kind = file.suffix.lower()
    if kind not in (".svg", ".png"):
        raise ConfigError(f"--plot {file} is neither .svg nor .png; name the file so")
    if kind == ".png" and find_spec("matplotlib") is None:
        raise ConfigError(
            f"--plot {file} needs matplotlib, which is not installed; install it with "
            "`pip install 'trivet[plot]'`, or name the file .svg, which needs nothing"
        )
