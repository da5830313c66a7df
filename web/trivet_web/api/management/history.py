"""GET /platform/v1/history: every figure of `/metrics` over the last quarter of an hour, or the last day.

With them go quantiles of latencies (metrics/quantiles.py).

Counters are cumulative: a rate is the difference of two values over the difference of their times.
Of several web processes each has its own samples, of the same figures.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from flask import Blueprint, Response, request

from trivet_web.accounts.rights import Right, requires
from trivet_web.api.documented import documented
from trivet_web.api.management.observations import whole_number
from trivet_web.json_response import json_response
from trivet_web.metrics.history import COARSE_LENGTH, COARSE_S, FINE_LENGTH, Series
from trivet_web.web_process import web_process

blueprint = Blueprint("history", __name__, url_prefix="/platform/v1")


class SeriesObject(msgspec.Struct, frozen=True):
    """One figure; `values` go with the listing's `times`, null where it was not sampled."""

    name: str
    labels: dict[str, str]
    kind: Literal["counter", "gauge"]
    values: list[float | None]


class HistoryObject(msgspec.Struct, frozen=True):
    """`times` are seconds since the epoch."""

    interval_s: int
    times: list[float]
    series: list[SeriesObject]


@blueprint.get("/history")
@requires(Right.READ)
@documented(HistoryObject, query={"window_s": int, "names": str, "deployment": str})
def history() -> Response:
    """`names` with commas picks some, `deployment` those of one. Raises: RequestError."""
    window_s = whole_number("window_s", FINE_LENGTH, 1, COARSE_LENGTH * COARSE_S)
    names = set(filter(None, request.args.get("names", "").split(",")))
    deployment = request.args.get("deployment")
    interval_s, times, found = web_process().history.read(window_s)
    shown = [_object(series) for series in found if not names or series.name in names]
    if deployment is not None:
        shown = [series for series in shown if series.labels.get("model_name") == deployment]
    return json_response(HistoryObject(interval_s, times, shown))


def _object(series: Series) -> SeriesObject:
    labels = dict(zip(series.labels[::2], series.labels[1::2], strict=True))
    kind: Literal["counter", "gauge"] = "counter" if series.is_counter else "gauge"
    return SeriesObject(series.name, labels, kind, series.values.tolist())
