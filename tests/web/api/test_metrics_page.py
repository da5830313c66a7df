"""/metrics: the names that dashboards use, and the truth when engines and supervisor are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trivet.metrics import METRICS, Kind

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient


def samples(client: FlaskClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name → labels → value."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").get_data(as_text=True)):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def labels_of(instance: str) -> tuple[tuple[str, str], ...]:
    """Of a series of the model "demo"; the test's engines are on no device."""
    return ("backend", ""), ("device", ""), ("instance", instance), ("model_name", "demo")


def test_page_holds_every_metric_with_its_kind_and_no_other(client: FlaskClient) -> None:
    text = client.get("/metrics").get_data(as_text=True)
    shown = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    wanted = {
        metric.full_name + ("_total" if metric.kind is Kind.COUNTER else ""): str(metric.kind)
        for metric in METRICS
    }
    assert shown == wanted


def test_client_cannot_make_series_by_inventing_words(site_client: FlaskClient) -> None:
    for method in ("AAA", "BBB"):
        site_client.open("/nothing/here", method=method)
    series = samples(site_client)["trivet:http_requests_total"]
    assert series[("method", "other"), ("route", "unknown"), ("status", "404")] == 2


def test_request_is_counted_once_everywhere(site: Site, site_client: FlaskClient, eventually: Any) -> None:
    engine = site.start_engine()
    body = {"model": "demo", "prompt": "a b c", "max_tokens": 5}
    assert site_client.post("/v1/completions", json=body).status_code == 200
    own = labels_of(engine.instance)
    now = samples(site_client)
    assert now["trivet:time_to_first_token_seconds_count"][own] == 1
    assert now["trivet:inter_token_latency_seconds_count"][own] == 4
    assert now["trivet:e2e_request_latency_seconds_count"][own] == 1
    assert now["trivet:request_generation_tokens_sum"][own] == 5
    bucket = tuple(sorted((*own, ("le", "+Inf"))))
    assert now["trivet:e2e_request_latency_seconds_bucket"][bucket] == 1
    reason = tuple(sorted((*own, ("finished_reason", "length"))))
    eventually(
        lambda: samples(site_client).get("trivet:request_success_total", {}).get(reason) == 1,
        what="the engine's beat brings its totals",
    )
    assert samples(site_client)["trivet:generation_tokens_total"][own] == 5


def test_the_way_to_the_first_token_is_told_in_its_parts(site: Site, site_client: FlaskClient) -> None:
    engine = site.start_engine("--queue-s", "0.25", "--first-s", "0.3")
    body = {"model": "demo", "prompt": "a b c", "max_tokens": 2}
    assert site_client.post("/v1/completions", json=body).status_code == 200
    own, now = labels_of(engine.instance), samples(site_client)

    def seconds(name: str) -> float:
        return now[f"trivet:{name}_seconds_sum"][own]

    assert seconds("request_queue_time") == 0.25
    parts = [seconds(f"request_{part}_time") for part in ("tokenize", "queue", "prefill")]
    assert sum(parts) == pytest.approx(seconds("time_to_first_token"))
    assert seconds("request_decode_time") == pytest.approx(
        seconds("e2e_request_latency") - seconds("time_to_first_token")
    )


def test_a_failure_is_counted_once_whole_or_streamed(site: Site, site_client: FlaskClient) -> None:
    site.start_engine("--refuse", "429")
    body = {"model": "demo", "prompt": "a", "max_tokens": 2}
    for stream in (False, True):
        assert site_client.post("/v1/completions", json={**body, "stream": stream}).status_code == 429
    assert samples(site_client)["trivet:request_failures_total"] == {
        (("code", "overloaded"), ("model_name", "demo")): 2.0
    }


def test_the_history_has_what_the_page_shows(site: Site, site_client: FlaskClient, eventually: Any) -> None:
    site.start_engine()
    body = {"model": "demo", "prompt": "a", "max_tokens": 3}
    assert site_client.post("/v1/completions", json=body).status_code == 200

    def values(query: str) -> list[float]:
        headers = {"Authorization": f"Bearer {site.token}"}
        told = site_client.get(f"/platform/v1/history?{query}", headers=headers).get_json()
        return [series["values"][-1] for series in told["series"]]

    eventually(
        lambda: values("names=generation_tokens_total&deployment=demo") == [3.0], what="it was sampled"
    )
    assert values("names=generation_tokens_total&deployment=other") == []


def test_a_sample_that_fails_is_told_and_the_next_ones_are_taken(
    site: Site, site_client: FlaskClient, eventually: Any, monkeypatch: Any, caplog: Any
) -> None:
    history = site_client.application.extensions["trivet"].history
    taken: list[float] = []

    def fail_once(now_s: float, found: object) -> None:
        taken.append(now_s)
        if len(taken) == 1:
            raise ValueError("nobody foresaw it")

    monkeypatch.setattr(history, "append", fail_once)
    eventually(lambda: len(taken) >= 2)
    assert "no sample is taken" in caplog.text


def test_page_is_answered_without_supervisor_and_engine(
    site: Site, site_client: FlaskClient, eventually: Any
) -> None:
    engine = site.start_engine()
    own = labels_of(engine.instance)
    eventually(lambda: own in samples(site_client).get("trivet:num_requests_running", {}), what="it is seen")
    engine.kill()
    eventually(
        lambda: own not in samples(site_client).get("trivet:num_requests_running", {}), what="it is gone"
    )
    now = samples(site_client)
    assert now["trivet:supervisor_up"] == {(): 0.0}
    state = (("instance", engine.instance), ("model_name", "demo"), ("state", "lost"))
    assert now["trivet:instance_state"][state] == 1, (
        "though its row says ready: no supervisor has seen its end"
    )


def test_labels_are_escaped(site: Site, site_client: FlaskClient) -> None:
    site_client.get('/v1/models/"\\')
    assert samples(site_client)["trivet:http_requests_total"]
