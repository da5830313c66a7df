"""Quantiles of the last minute as figures of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trivet import metrics
from trivet_web.metrics.bucket_history import Spread
from trivet_web.metrics.quantiles import quantile, quantile_samples

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

TTFT = metrics.TIME_TO_FIRST_TOKEN
BOUNDS = (1.0, 2.0, 4.0)


def spread(model: str, instance: str, bucket: int, count: int) -> Spread:
    counts = [0] * (len(TTFT.buckets) + 1)
    counts[bucket] = count
    return Spread(TTFT.name, (model, instance, "null", "0"), counts, 0.0)


@pytest.mark.parametrize(
    ("share", "counts", "expected"),
    [
        (0.5, [10, 0, 0, 0], 0.5),
        (0.5, [5, 0, 5, 0], 1.0),
        (0.75, [5, 0, 5, 0], 3.0),
        (0.99, [0, 0, 0, 7], 4.0),  # beyond all bounds
        (0.5, [0, 0, 0, 0], None),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(
    share: float, counts: list[int], expected: float | None
) -> None:
    assert quantile(share, BOUNDS, counts) == expected


def test_instances_of_a_deployment_are_merged_and_all_are_without_labels() -> None:
    spreads = [spread("a", "one", 3, 9), spread("a", "two", 6, 1), spread("b", "three", 9, 10)]
    found = {(one.name, one.labels): one.value for one in quantile_samples(spreads)}
    own, last = ("model_name", "a"), f"{TTFT.name}_p99"
    assert {labels for _, labels in found} == {(), own, ("model_name", "b")}
    assert TTFT.buckets[2] < found[f"{TTFT.name}_p50", own] <= TTFT.buckets[3]
    assert TTFT.buckets[5] < found[last, own] <= TTFT.buckets[6]
    assert found[last, ()] > found[last, own]


def test_what_had_no_request_has_no_quantile() -> None:
    assert not list(quantile_samples([spread("a", "one", 0, 0)]))


def test_the_history_has_them(site: Site, site_client: FlaskClient, eventually: Any) -> None:
    site.start_engine()
    names = ",".join(f"{TTFT.name}_{suffix}" for suffix in ("p50", "p99"))
    headers = {"Authorization": f"Bearer {site.token}"}

    def history() -> dict[str, Any]:
        url = f"/platform/v1/history?window_s=900&names={names}"
        found: dict[str, Any] = site_client.get(url, headers=headers).get_json()
        return found

    eventually(
        lambda: history()["times"],
        what="a sample from before the first request, of which later ones are counted",
    )
    body = {"model": "demo", "prompt": "a", "max_tokens": 2}
    assert site_client.post("/v1/completions", json=body).status_code == 200
    wanted = [{}, {"model_name": "demo"}] * 2
    eventually(lambda: [one["labels"] for one in history()["series"]] == wanted, what="quantiles are sampled")
