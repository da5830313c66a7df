"""What dashboard and alert rules ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).parents[2] / "docker"
DASHBOARD = DOCKER / "grafana" / "trivet.json"
ALERTS = DOCKER / "prometheus" / "alerts.yaml"
CONFIG = DOCKER / "prometheus" / "prometheus.yaml"
OF_SCRAPE = frozenset({"site", "job"})  # labels that prometheus.yaml adds to every series
_SERIES = re.compile(r"trivet:([a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


@dataclass(frozen=True)
class Query:
    """One expression, and the labels that the text beside it shows."""

    where: str
    expr: str
    shown: frozenset[str]

    @property
    def series(self) -> list[tuple[str, frozenset[str]]]:
        """Names without the prefix, each with the labels that are matched."""
        return [
            (name, frozenset(_MATCHER.findall(matchers))) for name, matchers in _SERIES.findall(self.expr)
        ]

    @property
    def groupings(self) -> list[frozenset[str]]:
        """Labels of each `by (...)`."""
        return [frozenset(re.findall(r"\w+", group)) for group in _GROUPING.findall(self.expr)]


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    """Those with queries."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries_of_dashboard() -> Iterator[Query]:
    for panel in panels():
        for target in panel["targets"]:
            shown = frozenset(re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"]))
            yield Query(f"panel {panel['title']}", target["expr"], shown)
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
            assert found, variable
            yield Query(f"variable {variable['name']}", found[1], frozenset({found[2]}))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries_of_rules() -> Iterator[Query]:
    for rule in rules():
        shown = frozenset(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        yield Query(f"alert {rule['alert']}", rule["expr"], shown)


def queries() -> list[Query]:
    return [*queries_of_dashboard(), *queries_of_rules()]
