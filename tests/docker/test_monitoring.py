"""Dashboard and alert rules ask for what `GET /metrics` has, and for nothing else.

tests/web/api/test_metrics_page.py checks that the page has every metric of trivet.metrics; `tests/run
operations` asks a real Prometheus.
"""

from __future__ import annotations

import re

import pytest
from monitoring import DOCKER, OF_SCRAPE, Query, dashboard, panels, queries, queries_of_dashboard, rules

from trivet.metrics import METRICS, Kind

SUFFIXES = {Kind.GAUGE: ("",), Kind.COUNTER: ("_total",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
# Name of a series → its labels.
EXPORTED = {
    metric.name + suffix: {*metric.labels, *OF_SCRAPE} | ({"le"} if suffix == "_bucket" else set())
    for metric in METRICS
    for suffix in SUFFIXES[metric.kind]
}


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.where)
def test_every_series_and_label_is_exported(query: Query) -> None:
    assert query.series or query.expr.startswith("up{")
    known: set[str] = set(OF_SCRAPE)
    for name, matched in query.series:
        assert name in EXPORTED, f"{query.where} asks for trivet:{name}"
        assert matched <= EXPORTED[name], f"{query.where}: trivet:{name} has no {matched - EXPORTED[name]}"
        known |= EXPORTED[name]
    for grouping in query.groupings:
        assert grouping <= known, f"{query.where} groups by {grouping - known}"
    visible = frozenset.union(*query.groupings) if query.groupings else known
    assert query.shown <= visible, f"{query.where} shows {query.shown - visible}"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_on_the_dashboard(metric: object) -> None:
    name = metric.name  # type: ignore[attr-defined]  # pytest hands it on untyped
    shown = {series for query in queries_of_dashboard() for series, _ in query.series}
    assert any(
        name == re.sub(r"_(total|bucket|sum|count)$", "", series) or name == series for series in shown
    )


def test_panels_lie_side_by_side_and_say_what_they_show() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over {taken[x, y]}"
                taken[x, y] = panel["title"]
    for panel in panels():
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_every_alert_has_its_place_in_the_handbook() -> None:
    page = (DOCKER / "handbook" / "troubleshooting.md").read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("#")
    }
    for rule in rules():
        assert rule["annotations"]["runbook"] in anchors, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
