"""Draws a chart as SVG, with nothing but text."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from trivet.bench.chart import Chart, ticks, value_text

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 90, 70  # margins of the plot area
LABEL_HEIGHT = 11
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")  # as matplotlib has them
FONT = "font-family='Helvetica, Arial, sans-serif'"


def svg(chart: Chart) -> str:
    """The whole file."""
    axis = _Axis(chart)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT} font-size='12'>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        _text(LEFT, 24, chart.title, "font-size='16' font-weight='bold'"),
        _text(LEFT, 42, chart.subtitle, "fill='#555'"),
        *_grid(chart, axis),
        *(_lines(chart, axis) if chart.is_line else _bars(chart, axis)),
        *_legend(chart),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Axis:
    """Where a value or a category lies."""

    def __init__(self, chart: Chart) -> None:
        self.ticks = ticks(chart.values, chart.is_log)
        self._is_log = chart.is_log
        self._low, self._high = self._scaled(self.ticks[0]), self._scaled(self.ticks[-1])
        self.band = (WIDTH - LEFT - RIGHT) / max(1, len(chart.categories))

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._is_log else value

    def y(self, value: float) -> float:
        share = (self._scaled(value) - self._low) / (self._high - self._low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def can_draw(self, value: float | None) -> bool:
        return value is not None and (value > 0 or not self._is_log)

    def centre(self, index: int) -> float:
        return LEFT + (index + 0.5) * self.band


def _grid(chart: Chart, axis: _Axis) -> list[str]:
    parts = []
    for tick in axis.ticks:
        y = axis.y(tick)
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>")
        parts.append(_text(LEFT - 6, y + 4, f"{tick:,.6g}", "text-anchor='end'"))
    for index, category in enumerate(chart.categories):
        parts.append(_text(axis.centre(index), HEIGHT - BOTTOM + 18, category, "text-anchor='middle'"))
    parts.append(_text((WIDTH + LEFT) / 2, HEIGHT - 20, chart.x_label, "text-anchor='middle'"))
    turned = f"transform='rotate(-90 18 {HEIGHT / 2})' text-anchor='middle'"
    parts.append(_text(18, HEIGHT / 2, chart.y_label, turned))
    return parts


def _bars(chart: Chart, axis: _Axis) -> list[str]:
    parts = []
    width = 0.8 * axis.band / len(chart.series)
    bottom = HEIGHT - BOTTOM
    for number, series in enumerate(chart.series):
        for index, value in enumerate(series.values):
            if value is None or not axis.can_draw(value):
                continue
            left = axis.centre(index) - 0.4 * axis.band + number * width
            y = axis.y(value)
            parts.append(
                f"<rect x='{left:.1f}' y='{y:.1f}' width='{width:.1f}' height='{bottom - y:.1f}' "
                f"fill='{_colour(number)}'/>"
            )
            middle = "text-anchor='middle' font-size='10'"
            parts.append(_text(left + width / 2, y - 4, value_text(value), middle))
    return parts


def _lines(chart: Chart, axis: _Axis) -> list[str]:
    parts = []
    labelled: list[tuple[float, float]] = []
    for number, series in enumerate(chart.series):
        points = [
            (axis.centre(index), axis.y(value), value)
            for index, value in enumerate(series.values)
            if value is not None and axis.can_draw(value)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        colour = _colour(number)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        for x, y, value in points:
            parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>")
            if all(x != other_x or abs(y - other_y) > LABEL_HEIGHT for other_x, other_y in labelled):
                labelled.append((x, y))
                parts.append(_text(x, y - 7, value_text(value), "text-anchor='middle' font-size='10'"))
    return parts


def _legend(chart: Chart) -> list[str]:
    if len(chart.series) < 2:
        return []
    parts, x = [], float(LEFT)
    for number, series in enumerate(chart.series):
        parts.append(f"<rect x='{x:.0f}' y='54' width='12' height='12' fill='{_colour(number)}'/>")
        parts.append(_text(x + 17, 64, series.name, ""))
        x += 40 + 7 * len(series.name)
    return parts


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _text(x: float, y: float, text: str, style: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"
