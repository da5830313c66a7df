"""Charts: what is drawn, where, and by what."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

import pytest

from trivet.bench.chart import Chart, Series, chart_of, draw, ticks
from trivet.bench.svg_chart import svg

BARS = Chart(
    "a < b & c", "sub", "x", "ms", ("one", "two"), (Series("p50", (10.0, 20.0)), Series("p99", (40.0, None)))
)
HEAD = {
    "machine": {"cpu": "C", "cores": 2, "isa": ["avx2"], "trivet": "1"},
    "config": {"model": "m", "streams": 8, "arriving_tokens": 1024},
}


def _elements(text: str, name: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(text)  # our own text
    return [element for element in root.iter() if element.tag.endswith(name)]


def _bar_heights(text: str) -> list[float]:
    bars = [element for element in _elements(text, "rect") if element.get("fill") not in ("white",)]
    return [float(bar.get("height", "0")) for bar in bars if float(bar.get("height", "0")) != 12]


def test_bars_are_as_high_as_their_values() -> None:
    heights = _bar_heights(svg(BARS))
    assert len(heights) == 3
    assert heights[1] / heights[0] == pytest.approx(2, rel=0.01)
    assert heights[2] / heights[0] == pytest.approx(4, rel=0.01)


def test_on_a_log_axis_a_decade_is_always_as_high() -> None:
    chart = Chart("", "", "", "", ("a", "b", "c"), (Series("s", (1.0, 10.0, 100.0)),), is_log=True)
    heights = _bar_heights(svg(chart))
    assert heights[0] == pytest.approx(0)
    assert heights[2] == pytest.approx(2 * heights[1])


def test_a_line_has_a_point_for_each_value() -> None:
    chart = Chart("", "", "", "", ("a", "b", "c"), (Series("s", (1.0, None, 3.0)),), is_line=True)
    assert len(_elements(svg(chart), "circle")) == 2
    (line,) = _elements(svg(chart), "polyline")
    assert len(line.get("points", "").split()) == 2


def test_words_are_escaped() -> None:
    texts = [element.text for element in _elements(svg(BARS), "text")]
    assert "a < b & c" in texts
    assert {"one", "two", "p50", "p99", "ms"} <= set(texts)


@pytest.mark.parametrize(
    ("values", "is_log", "wanted"),
    [
        ([43.0], False, [0, 10, 20, 30, 40, 50]),
        ([0.9], False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ([100.0], False, [0, 20, 40, 60, 80, 100]),
        ([0.0], False, [0, 0.2]),
        ([], False, [0, 1]),
        ([3.0, 250.0], True, [1, 10, 100, 1000]),
        ([10.0], True, [10, 100]),
        ([0.02, 0.9], True, [0.01, 0.1, 1]),
    ],
)
def test_ticks_are_round_and_enclose_the_values(
    values: list[float], is_log: bool, wanted: list[float]
) -> None:
    assert ticks(values, is_log) == pytest.approx(wanted)


def test_every_benchmark_has_its_chart() -> None:
    series = {f"{name}_ms_p{p}": float(p) for name in ("ttft", "itl") for p in (50, 90, 99)}
    plain = chart_of({**HEAD, "benchmark": "serve", "output_tokens_per_s": 5.0, **series})
    assert plain.categories == ("TTFT", "ITL")
    assert plain.series[2] == Series("p99", (99.0, 99.0))
    scenarios = {
        "one_stream": {"decode_tokens_per_s": 9.0, "prefill_tokens_per_s": 8.0, "output_tokens_per_s": 7.0},
        "prefill_1024": {"prefill_tokens_per_s": 8.0, "output_tokens_per_s": 7.0},
        "at_once_4": {"output_tokens_per_s": 7.0},
    }
    suite = chart_of({**HEAD, "benchmark": "suite", "mode": "serve", "scenarios": scenarios})
    assert suite.series[0].values == (9.0, 8.0, 7.0)
    figures = {"itl_ms_p50": 1.0, "itl_ms_p99": 2.0, "quiet_itl_ms_p50": 0.5, "ttft_ms_p50": 9.0}
    points = [{"max_num_batched_tokens": budget, **figures} for budget in (32, 64)]
    interference = chart_of({**HEAD, "benchmark": "interference", "points": points})
    assert interference.categories == ("32", "64")
    assert interference.series[1].values == (2.0, 2.0)
    phases = {"startup_s": 3.0, "phase_imports_s": 1.0, "phase_load_s": 2.0}
    startup = chart_of({**HEAD, "benchmark": "startup", **phases})
    assert dict(zip(startup.categories, startup.series[0].values, strict=True)) == {
        "imports": 1.0,
        "load": 2.0,
    }


def test_a_file_of_either_kind_is_written(tmp_path: Path) -> None:
    draw(BARS, tmp_path / "a.svg")
    assert re.match(r"<svg ", (tmp_path / "a.svg").read_text())
    if find_spec("matplotlib") is None:
        with pytest.raises(ImportError):
            draw(BARS, tmp_path / "a.png")
        pytest.skip("matplotlib is not installed: no PNG can be drawn here")
    draw(BARS, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
