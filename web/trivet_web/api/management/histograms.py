"""GET /platform/v1/histograms: how latencies and lengths of a while were spread, by buckets."""

from __future__ import annotations

import time

import msgspec
from flask import Blueprint, Response, request

from trivet import metrics
from trivet.metrics import Kind
from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.observations import whole_number
from trivet_web.json_response import json_response
from trivet_web.web_process import web_process

blueprint = Blueprint("histograms", __name__, url_prefix="/platform/v1")
HOUR_S = 3600
_HISTOGRAMS = {metric.name: metric for metric in metrics.METRICS if metric.kind is Kind.HISTOGRAM}


class HistogramObject(msgspec.Struct, frozen=True):
    """`counts` has one more than `bounds`, which are upper ones; `total` is the sum of the values."""

    name: str
    labels: dict[str, str]
    bounds: tuple[float, ...]
    counts: list[int]
    total: float


class HistogramsObject(msgspec.Struct, frozen=True):
    """Of `window_s` seconds: fewer than asked for where the server is younger, up to 15 s more."""

    window_s: float
    histograms: list[HistogramObject]


@blueprint.get("/histograms")
@requires(Right.READ)
@documented(HistogramsObject, query={"window_s": int, "names": str, "deployment": str})
def histograms() -> Response:
    """`names` with commas picks some, `deployment` those of one. Raises: RequestError."""
    process = web_process()
    window_s = whole_number("window_s", 300, 1, HOUR_S)
    names = set(filter(None, request.args.get("names", "").split(",")))
    deployment = request.args.get("deployment")
    length_s, found = process.buckets.spread(window_s, time.time(), process.metrics.totals())
    shown = [
        HistogramObject(
            one.name,
            dict(zip(_HISTOGRAMS[one.name].labels, one.labels, strict=True)),
            _HISTOGRAMS[one.name].buckets,
            one.counts,
            one.total,
        )
        for one in found
        if not names or one.name in names
    ]
    if deployment is not None:
        shown = [one for one in shown if one.labels.get("model_name") == deployment]
    return json_response(HistogramsObject(length_s, shown))
