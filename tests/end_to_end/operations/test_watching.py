"""Debian's Prometheus with docker/prometheus, scraping a site under load: rules, dashboard, vLLM's names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import yaml
from monitoring import ALERTS, CONFIG, Query, dashboard, queries_of_dashboard, queries_of_rules, rules
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from conftest import Site  # of end_to_end

UNIT_TESTS = Path(__file__).parent / "alerts_test.yaml"
VARIABLES = {"$site": ".*", "$model": ".*", "$__rate_interval": "30s"}
# The CPU tells none of these of itself.
ABSENT = {"device_utilisation_ratio", "device_temperature_celsius", "device_power_watts"}


# What vLLM's own board asks for: examples/observability/prometheus_grafana/grafana.json of its repository.
OF_MODEL = '{model_name="smol"}'
LATENCIES = ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
VLLM_BOARD = [
    *(
        f"histogram_quantile(0.99, sum by(le) (rate(vllm:{m}_seconds_bucket{OF_MODEL}[30s])))"
        for m in LATENCIES
    ),
    *(
        f"rate(vllm:{m}_seconds_sum{OF_MODEL}[30s])/rate(vllm:{m}_seconds_count{OF_MODEL}[30s])"
        for m in LATENCIES
    ),
    *(f"rate(vllm:{m}_tokens_total{OF_MODEL}[30s])" for m in ("prompt", "generation")),
    *(f"vllm:{m}{OF_MODEL}" for m in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")),
    *(
        f"sum by(le) (increase(vllm:request_{m}_tokens_bucket{OF_MODEL}[30s]))"
        for m in ("prompt", "generation")
    ),
    f"sum by(finished_reason) (increase(vllm:request_success_total{OF_MODEL}[30s]))",
    *(f"rate(vllm:request_{m}_time_seconds_sum{OF_MODEL}[30s])" for m in ("queue", "prefill", "decode")),
]
VLLM_ONLY = "vllm:request_max_num_generation_tokens_sum"  # as docker/handbook/watching.md says


def promtool(*arguments: object) -> str:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def etc(tmp_path_factory: pytest.TempPathFactory, watched_site: Site) -> Path:
    """As /etc/prometheus, but for the places of key and site, and scraping each second."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(ALERTS, folder / "alerts.yaml")
    with watched_site.client() as client:
        key = client.keys.create("prometheus", scopes=["read"]).key
    (folder / "trivet.key").write_text(key or "")
    text = CONFIG.read_text()
    for old, new in (
        ("/etc/prometheus/trivet.key", str(folder / "trivet.key")),
        ("127.0.0.1:8000", f"127.0.0.1:{watched_site.port}"),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def watched_site(home_of_module: Site) -> Site:
    """Keys are needed; "null" makes a token each 10 ms, "smol" is real."""
    (home_of_module.home / "trivet.toml").write_text('auth = "required"\n')
    home_of_module.serve()
    home_of_module.launch("smol", "cpu", max_num_seqs="8", max_model_len="2048")
    home_of_module.launch("null", "null", **{"options.step_ms": "10"})
    return home_of_module


class Prometheus:
    """A server of its own; `ask` evaluates now."""

    def __init__(self, etc: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        options = {
            "config.file": etc / "prometheus.yaml",
            "storage.tsdb.path": etc / "data",
            "web.listen-address": self.url.removeprefix("http://"),
            "log.level": "warn",
        }
        self._process = subprocess.Popen(["prometheus", *(f"--{k}={v}" for k, v in options.items())])

    def get(self, path: str, **parameters: str) -> Any:
        try:
            answer = httpx2.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30)
        except httpx2.TransportError:
            return None
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def ask(self, expr: str) -> list[Any]:
        found = self.get("query", query=expr)
        return [] if found is None else list(found["result"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture(scope="module")
def prometheus(etc: Path, watched_site: Site) -> Iterator[Prometheus]:
    """It has seen requests of every kind grow for some seconds."""
    started = Prometheus(etc)
    names = ("smol", "null")
    body = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True}

    def ask(number: int) -> None:
        headers = {"Authorization": f"Bearer {watched_site.token}"}
        url = f"{watched_site.base_url}/v1/completions"
        model = names[number % 2] if number % 10 else "smol"
        wrong = {"max_tokens": 10**6} if number % 10 == 9 else {}
        httpx2.post(url, json={**body, "model": model, **wrong}, headers=headers, timeout=60)

    def is_seen() -> bool:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask, range(20)))
        counted = "sum by (model_name) (rate(trivet:e2e_request_latency_seconds_count[30s])) > 0"
        return len(started.ask(counted)) == len(names) and len(started.ask("vllm:prompt_tokens_total")) >= 2

    try:
        watched_site.wait_for("Prometheus has seen requests", is_seen)
        yield started
    finally:
        started.close()


def concrete(expr: str) -> str:
    """As Grafana fills in the variables."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def test_promtool_finds_nothing_wrong(etc: Path) -> None:
    promtool("check", "config", etc / "prometheus.yaml")
    found = promtool("check", "rules", ALERTS)
    assert f"{len(rules())} rules found" in found


def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    text = UNIT_TESTS.read_text()
    (tmp_path / "alerts_test.yaml").write_text(text.replace("ALERTS", str(ALERTS)))
    promtool("test", "rules", tmp_path / "alerts_test.yaml")
    fired = {
        case["alertname"]
        for test in yaml.safe_load(text)["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in rules()}


def test_the_page_is_what_prometheus_calls_well_formed(watched_site: Site) -> None:
    """By promtool's linter; it asks for base units, which vLLM's names do not have."""
    page = watched_page(watched_site)
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
    complaints = [
        line for line in done.stderr.splitlines() if "metric names should not contain ':'" not in line
    ]
    assert not complaints, done.stderr


def watched_page(site: Site) -> str:
    headers = {"Authorization": f"Bearer {site.token}"}
    return httpx2.get(f"{site.base_url}/metrics", headers=headers, timeout=30).text


@pytest.mark.parametrize(
    "query", list(queries_of_dashboard()), ids=lambda query: f"{query.where}: {query.expr}"[:60]
)
def test_each_panel_shows_something(prometheus: Prometheus, query: Query) -> None:
    expected_empty = {name for name, _ in query.series} & ABSENT
    found = prometheus.ask(concrete(query.expr))
    assert bool(found) != bool(expected_empty), query.expr
    for series in found:
        assert query.shown <= series["metric"].keys(), series


@pytest.mark.parametrize("query", list(queries_of_rules()), ids=lambda query: query.where)
def test_every_series_of_a_rule_has_its_labels_on_the_page(
    prometheus: Prometheus, watched_site: Site, query: Query
) -> None:
    families = {
        family.name.removeprefix("trivet:"): family
        for family in text_string_to_metric_families(watched_page(watched_site))
    }
    for name, matched in query.series:
        base = name.removesuffix("_total").removesuffix("_bucket")
        assert base in families, name
        for sample in families[base].samples[:1]:
            assert matched - {"site", "job", "le"} <= sample.labels.keys()


def test_no_alert_is_on_at_a_site_that_serves_well(prometheus: Prometheus) -> None:
    loaded = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in loaded} == {rule["alert"] for rule in rules()}
    assert [rule["name"] for rule in loaded if rule["health"] != "ok"] == []
    on = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
    assert on <= {"TrivetFirstTokenSlow", "TrivetTokensSlow"}  # of a machine that others use


def test_variables_of_the_dashboard_have_values(prometheus: Prometheus) -> None:
    assert [one["name"] for one in dashboard()["templating"]["list"]] == ["datasource", "site", "model"]
    sites = prometheus.get("label/site/values", **{"match[]": "trivet:supervisor_up"})
    models = prometheus.get("label/model_name/values", **{"match[]": 'trivet:instance_state{site=~".*"}'})
    assert (sites, models) == (["main"], ["null", "smol"])


@pytest.mark.parametrize("expr", VLLM_BOARD)
def test_a_board_made_for_vllm_shows_something(prometheus: Prometheus, expr: str) -> None:
    assert prometheus.ask(expr)


def test_vllms_names_are_a_rename_and_what_is_missing_is_written_down(
    prometheus: Prometheus, watched_site: Site
) -> None:
    def named(prefix: str) -> set[str]:
        names = prometheus.get("label/__name__/values")
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    watched_site.wait_for("both have been read", lambda: named("vllm:") == named("trivet:"))
    engines = prometheus.get("label/engine/values", **{"match[]": "vllm:num_requests_running"})
    assert len(engines) == 2
    assert VLLM_ONLY not in prometheus.get("label/__name__/values")
    page = (CONFIG.parents[1] / "handbook" / "watching.md").read_text()
    assert VLLM_ONLY.removeprefix("vllm:").removesuffix("_sum") in page
