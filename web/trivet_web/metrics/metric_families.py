"""Every metric as it is now: what `/metrics` prints and the history samples.

Gauges come from the engines' own heart-beats, so every web process tells the same; counters of engines are
summed over their attempts (engine_totals.py); histograms are the web processes' (web_metrics.py); devices
are as the supervisor last saw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from trivet import metrics
from trivet.messages import EngineLoad
from trivet.metrics import Kind, Metric
from trivet_registry.instance_state import InstanceState
from trivet_web.api.device_metrics import device_families
from trivet_web.engines.routing import READY, Table
from trivet_web.metrics.history import Sample

if TYPE_CHECKING:
    from trivet_web.metrics.web_metrics import Series
    from trivet_web.web_process import WebProcess

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
_HISTOGRAMS = [metric for metric in metrics.METRICS if metric.kind is Kind.HISTOGRAM]
_NOT_KEPT = (metrics.HTTP_REQUESTS.full_name, metrics.INSTANCE_STATE.full_name)  # many series, told elsewhere


class _Engine(NamedTuple):
    """An instance of the routing table: of its load only the counters where it does not live."""

    labels: tuple[str, ...]  # name, instance, backend, device
    now: EngineLoad | None
    totals: EngineLoad


def families(process: WebProcess) -> Iterator[Family]:
    """All of trivet/metrics.py."""
    totals = process.metrics.totals()
    yield from _histograms(totals)
    yield from _gauges_and_counters(process, totals)


def _gauges_and_counters(process: WebProcess, totals: dict[str, list[Series]]) -> Iterator[Family]:
    table = process.router.table()
    engines = _engines(process, table)
    for metric, value_of in _OF_LOAD.items():
        family = _family(metric)
        for engine in engines:
            load = engine.now if metric.kind is Kind.GAUGE else engine.totals
            if load is not None:
                family.add_metric(engine.labels, value_of(load))
        yield family
    yield _finished(engines)
    yield from _counted(totals)
    supervisor = _family(metrics.SUPERVISOR_UP)
    supervisor.add_metric((), 1.0 if process.supervisor.is_up() else 0.0)
    yield supervisor
    yield _states(process, table)
    yield from device_families(process.database)


def samples(process: WebProcess) -> Iterator[Sample]:
    """What the history keeps: gauges, counters, sums and counts of histograms. 2 ms, and 0.2 an instance."""
    totals = process.metrics.totals()
    for family in _gauges_and_counters(process, totals):
        if family.name not in _NOT_KEPT:
            for sample in family.samples:
                labels = tuple(part for label in sample.labels.items() for part in label)
                name = sample.name.removeprefix(metrics.PREFIX)
                yield Sample(name, labels, sample.value, family.type != "gauge")
    for metric in _HISTOGRAMS:
        for series in totals.get(metric.name, ()):
            labels = tuple(part for label in zip(metric.labels, series.labels, strict=True) for part in label)
            yield Sample(f"{metric.name}_sum", labels, series.total, is_counter=True)
            yield Sample(f"{metric.name}_count", labels, float(sum(series.counts)), is_counter=True)


def _engines(process: WebProcess, table: Table) -> list[_Engine]:
    living: dict[str, EngineLoad] = {}
    rows = [(name, row) for name, deployed in table.items() for row in deployed.instances]
    for _, row in rows:
        view = process.relay.view(row.id)
        if view is not None and view.beat is not None:
            process.engine_totals.observe(row.id, view.beat.lease, view.load)
            if view.lost_because is None:
                living[row.id] = view.load
    kept = [row.id for _, row in rows]
    process.metrics.keep(kept)
    process.engine_totals.keep(kept)
    totals = process.engine_totals.loads()
    return [
        _Engine((name, row.id, row.backend, row.device), living.get(row.id), totals[row.id])
        for name, row in rows
        if row.id in totals
    ]


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
    return kind(metric.full_name, metric.help, labels=metric.labels)


def _finished(engines: list[_Engine]) -> Family:
    family = _family(metrics.REQUEST_SUCCESS)
    for engine in engines:
        for reason, count in sorted(engine.totals.num_finished.items()):
            family.add_metric((*engine.labels, reason), float(count))
    return family


def _histograms(totals: dict[str, list[Series]]) -> Iterator[Family]:
    for metric in _HISTOGRAMS:
        histogram = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        for series in totals.get(metric.name, ()):
            histogram.add_metric(series.labels, _cumulative(metric, series), series.total)
        yield histogram


def _counted(totals: dict[str, list[Series]]) -> Iterator[Family]:
    for metric in (metrics.HTTP_REQUESTS, metrics.REQUEST_FAILURES):
        counter = _family(metric)
        for series in totals.get(metric.name, ()):
            counter.add_metric(series.labels, series.total)
        yield counter


def _cumulative(metric: Metric, series: Series) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
    total = 0
    rows = []
    for bound, count in zip(bounds, series.counts, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows


def _states(process: WebProcess, table: Table) -> Family:
    """As the registry says, but of an engine that this process has lost: its row waits for a supervisor."""
    family = _family(metrics.INSTANCE_STATE)
    for name, deployed in table.items():
        for row in deployed.instances:
            view = process.relay.view(row.id) if row.state == READY else None
            is_lost = view is not None and view.lost_because is not None
            family.add_metric((name, row.id, InstanceState.LOST if is_lost else row.state), 1.0)
    return family
