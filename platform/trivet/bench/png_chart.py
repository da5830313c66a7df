"""Draws a chart as PNG with matplotlib, which is optional (`pip install 'trivet[plot]'`)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from trivet.bench.chart import Chart, value_text


def write_png(chart: Chart, file: Path) -> None:
    """Raises: ImportError where matplotlib is not installed; OSError."""
    # Not pyplot: it keeps global state and looks for a display.
    figure = import_module("matplotlib.figure").Figure(figsize=(8.6, 4.6), layout="constrained")
    axes: Any = figure.subplots()
    positions = range(len(chart.categories))
    width = 0.8 / len(chart.series)
    for number, series in enumerate(chart.series):
        heights = [float("nan") if value is None else value for value in series.values]
        if chart.is_line:
            axes.plot(positions, heights, marker="o", label=series.name)
        else:
            left = [p - 0.4 + (number + 0.5) * width for p in positions]
            bars = axes.bar(left, heights, width, label=series.name)
            labels = ["" if value is None else value_text(value) for value in series.values]
            axes.bar_label(bars, labels, fontsize=8)
    axes.set_xticks(positions, chart.categories)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_yscale("log" if chart.is_log else "linear")
    axes.set_title(chart.subtitle, fontsize=8, loc="left")
    figure.suptitle(chart.title, fontsize=11)
    if len(chart.series) > 1:
        axes.legend()
    figure.savefig(file, format="png", dpi=150)
