"""GET /metrics: Prometheus text, also while the supervisor is dead."""

from __future__ import annotations

from collections.abc import Iterator

from flask import Blueprint, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.metrics.metric_families import families
from trivet_web.web_process import WebProcess, web_process

blueprint = Blueprint("metrics", __name__)


@blueprint.get("/metrics")
@requires(Right.METRICS)
@documented(media_type="text/plain")
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
        yield from families(self._process)
