"""GET /metrics: Prometheus text, also while the supervisor is dead.

Gauges and engine counters come from the engines' own heart-beats, so every web process tells the same;
histograms are the web processes' (web_metrics.py); devices are as the supervisor last saw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from trivet import metrics
from trivet.messages import EngineLoad
from trivet.metrics import Kind, Metric
from trivet_web.api.device_metrics import device_families
from trivet_web.engine_link import EngineView
from trivet_web.routing import Table
from trivet_web.web_metrics import Series
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("metrics", __name__)

_OF_LOAD: dict[Metric, Callable[[EngineLoad], float]] = {
    metrics.NUM_REQUESTS_RUNNING: lambda load: load.num_running,
    metrics.NUM_REQUESTS_WAITING: lambda load: load.num_waiting,
    metrics.KV_CACHE_USAGE_PERC: lambda load: load.kv_usage,
    metrics.PREFIX_CACHE_QUERIES: lambda load: load.prefix_queries,
    metrics.PREFIX_CACHE_HITS: lambda load: load.prefix_hits,
    metrics.NUM_PREEMPTIONS: lambda load: load.num_preemptions,
    metrics.NUM_PREEMPTIONS_SWAPPED: lambda load: load.num_swaps,
    metrics.NUM_REQUESTS_SWAPPED: lambda load: load.num_swapped,
    metrics.CPU_CACHE_USAGE_PERC: lambda load: load.swap_usage,
    metrics.ADMISSION_REJECTIONS: lambda load: load.num_refused,
    metrics.DEADLINES_PASSED: lambda load: load.num_deadlines_passed,
    metrics.PROMPT_TOKENS: lambda load: load.prompt_tokens,
    metrics.GENERATION_TOKENS: lambda load: load.generation_tokens,
}


@blueprint.get("/metrics")
def page() -> Response:
    """Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(web_process()))
    return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class _Page(Collector):
    """Every metric of trivet/metrics.py, as of now."""

    def __init__(self, process: WebProcess) -> None:
        self._process = process

    def collect(self) -> Iterator[Family]:
        table = self._process.router.table()
        engines = list(self._engines(table))
        for metric, value_of in _OF_LOAD.items():
            family = _family(metric)
            for name, instance, load in engines:
                family.add_metric((name, instance), value_of(load))
            yield family
        yield _finished(engines)
        yield from _measured(self._process.metrics.totals())
        supervisor = _family(metrics.SUPERVISOR_UP)
        supervisor.add_metric((), 1.0 if self._process.supervisor.is_up() else 0.0)
        yield supervisor
        yield _states(table)
        yield from device_families(self._process.database)

    def _engines(self, table: Table) -> Iterator[tuple[str, str, EngineLoad]]:
        """Living engines; one that has ended has no load."""
        for name, deployed in table.items():
            for row in deployed.instances:
                view: EngineView | None = self._process.relay.view(row.id)
                if view is not None and view.beat is not None and view.lost_because is None:
                    yield name, row.id, view.load


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
    return kind(metric.full_name, metric.help, labels=metric.labels)


def _finished(engines: list[tuple[str, str, EngineLoad]]) -> Family:
    family = _family(metrics.REQUEST_SUCCESS)
    for name, instance, load in engines:
        for reason, count in sorted(load.num_finished.items()):
            family.add_metric((name, instance, reason), float(count))
    return family


def _measured(totals: dict[str, list[Series]]) -> Iterator[Family]:
    for metric in metrics.METRICS:
        if metric.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
            for series in totals.get(metric.name, ()):
                histogram.add_metric(series.labels, _cumulative(metric, series), series.total)
            yield histogram
    requests = _family(metrics.HTTP_REQUESTS)
    for series in totals.get(metrics.HTTP_REQUESTS.name, ()):
        requests.add_metric(series.labels, series.total)
    yield requests


def _cumulative(metric: Metric, series: Series) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
    total = 0
    rows = []
    for bound, count in zip(bounds, series.counts, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows


def _states(table: Table) -> Family:
    family = _family(metrics.INSTANCE_STATE)
    for name, deployed in table.items():
        for row in deployed.instances:
            family.add_metric((name, row.id, row.state), 1.0)
    return family
