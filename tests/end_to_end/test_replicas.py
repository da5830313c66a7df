"""Several replicas behind one name, with real engines: balance, deaths, stalls, more and fewer of them."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from conftest import Site

pytestmark = pytest.mark.faults

NUM_REPLICAS = 3
HTTP = httpx2.Client(timeout=60)  # one for all threads: a new one reads certificates for 50 ms
PROMPT = "The heaviest of all metals that are stable is"


@pytest.fixture(scope="module")
def replicated(site_of_module: Site) -> Site:
    """ "m" has three replicas, each of which takes 10 ms a step and runs four sequences at once."""
    options = {"options.step_ms": "10", "max_num_seqs": "4", "max_model_len": "2048"}
    site_of_module.launch("m", "null", NUM_REPLICAS, **options)
    return site_of_module


@pytest.fixture
def site(replicated: Site) -> Site:
    """All replicas are ready, whatever the test before did."""
    replicated.wait_ready("m", NUM_REPLICAS)
    return replicated


def ask(site: Site, max_tokens: int, *, stream: bool = False, model: str = "m") -> tuple[int, str]:
    """Status and body of a completion."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    body["temperature"] = 0
    answer = HTTP.post(f"{site.base_url}/v1/completions", json=body)
    return answer.status_code, answer.text


def counters(site: Site) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every counter of the page, and every sum and count of a histogram, by name and labels."""
    page = HTTP.get(f"{site.base_url}/metrics").text
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.type in ("counter", "histogram")
    }


def finished(site: Site) -> Counter[str]:
    """Sequences that each instance has ended, ever."""
    counts: Counter[str] = Counter()
    for (name, labels), value in counters(site).items():
        if name == "trivet:request_success_total":
            counts[dict(labels)["instance"]] += int(value)
    return counts


def wait_for_rotation(site: Site) -> None:
    """Ask until each replica has answered: the table of the web server is up to half a second old."""
    before, num_asked = finished(site), 0
    while len(finished(site) - before) < NUM_REPLICAS:
        assert ask(site, 1)[0] == 200
        num_asked += 1
        assert num_asked < 1000, f"of {NUM_REPLICAS} only {finished(site) - before} answer"
    site.wait_for("all is told", lambda: (finished(site) - before).total() == num_asked)


def num_running(site: Site, model: str = "m") -> dict[int, int]:
    """Sequences at work, by the pid of their engine."""
    with site.client() as client:
        return {i.pid: i.load.num_running for i in client.instances.list(model) if i.pid and i.load}


def test_equal_requests_are_spread_within_a_tenth_of_the_mean(site: Site) -> None:
    """In one of three tries: an engine that others on the machine hold up rightly gets fewer."""
    num_requests = 210
    wait_for_rotation(site)
    for _ in range(3):
        before = finished(site)
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda _: ask(site, 8), range(num_requests)))
        assert [status for status, _ in answers] == [200] * num_requests
        site.wait_for(
            "every engine has told what it ended",
            lambda: (finished(site) - before).total() == num_requests,  # noqa: B023
        )
        counts = list((finished(site) - before).values())
        mean = num_requests / NUM_REPLICAS
        assert len(counts) == NUM_REPLICAS
        if all(abs(count - mean) <= 0.1 * mean for count in counts):
            return
    raise AssertionError(f"{counts} is no even share of {num_requests}")


def test_conversations_return_to_the_replica_that_has_read_them(site: Site) -> None:
    """Without affinity a third of the turns would, and the others would read everything anew."""

    def talk(number: int) -> None:
        prompt = [1000 + number] * 640  # two spans, and five blocks of this backend
        for turn in range(4):
            body = {"model": "m", "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
            answer = HTTP.post(f"{site.base_url}/v1/completions", json=body)
            assert answer.status_code == 200
            prompt = [*prompt, *([turn] * 64)]

    def looked_up() -> list[float]:
        names = ("trivet:prefix_cache_queries_total", "trivet:prefix_cache_hits_total")
        now = counters(site)
        return [sum(value for (name, _), value in now.items() if name == wanted) for wanted in names]

    before, num_before = looked_up(), finished(site).total()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(talk, range(12)))
    site.wait_for("the engines have told of it", lambda: finished(site).total() - num_before == 12 * 4)
    queries, hits = (now - then for now, then in zip(looked_up(), before, strict=True))
    assert hits > 0.5 * queries, f"{hits:.0f} of {queries:.0f}; 0.7 is what whole blocks allow"


def test_requests_of_a_killed_replica_are_answered_by_others_unless_a_token_was_sent(site: Site) -> None:
    with ThreadPoolExecutor(36) as pool:
        whole = [pool.submit(ask, site, 300) for _ in range(24)]
        streams = [pool.submit(ask, site, 300, stream=True) for _ in range(12)]
        site.wait_for("all are at work", lambda: set(num_running(site).values()) == {4})
        before = counters(site)
        victim = site.engine_pids()[0]
        os.kill(victim, signal.SIGKILL)
        assert {answer.result()[0] for answer in whole} == {200}
        texts = [answer.result()[1] for answer in streams]
    broken = [text for text in texts if not text.endswith("data: [DONE]\n\n")]
    assert len(broken) < len(texts)
    assert all("engine_lost" in text.rstrip().rpartition("\n")[2] for text in broken)
    site.wait_ready("m", NUM_REPLICAS)
    after = counters(site)
    assert len(before) > 100
    assert not [key for key, value in before.items() if after.get(key, -1) < value], "these went back"


def test_a_frozen_replica_leaves_rotation_and_returns(site: Site) -> None:
    frozen = site.engine_pids()[0]
    with site.client() as client:
        (instance,) = (i.id for i in client.instances.list("m") if i.pid == frozen)
    os.kill(frozen, signal.SIGSTOP)
    try:
        site.wait_for("it is out of rotation", lambda: "stalled" in instance_reason(site, instance))
        with ThreadPoolExecutor(8) as pool:
            assert {status for status, _ in pool.map(lambda _: ask(site, 4), range(16))} == {200}
    finally:
        is_in_time = False  # or it was killed for its silence
        with suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
            is_in_time = True
    before = finished(site)[instance]
    site.wait_for("it serves again", lambda: ask(site, 4)[0] == 200 and finished(site)[instance] > before)
    assert not is_in_time or frozen in site.engine_pids(), "its process went on"


def instance_reason(site: Site, instance: str) -> str:
    with site.client() as client:
        return next((i.reason or "" for i in client.instances.list("m") if i.id == instance), "")


def test_replicas_come_and_go_under_load_without_a_failed_request(site: Site) -> None:
    is_over = False

    def ask_on() -> Counter[int]:
        statuses: Counter[int] = Counter()
        while not is_over:
            statuses[ask(site, 20, stream=len(statuses) % 2 == 0)[0]] += 1
        return statuses

    with ThreadPoolExecutor(8) as pool:
        loads = [pool.submit(ask_on) for _ in range(8)]
        try:
            for replicas in (1, NUM_REPLICAS):
                with site.client() as client:
                    client.deployments.scale("m", replicas)
                site.wait_for(
                    f"{replicas} serve", lambda wanted=replicas: site.states("m") == ["ready"] * wanted
                )
        finally:
            is_over = True
        statuses = sum((load.result() for load in loads), Counter())
    assert set(statuses) == {200}


def test_whole_answers_of_a_killed_engine_of_smollm2_begin_anew_on_the_other(site: Site) -> None:
    site.launch("smol", "cpu", 2, max_num_seqs="4", max_model_len="512")
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(ask, site, 400, model="smol") for _ in range(6)]
        site.wait_for("one is at work", lambda: any(num_running(site, "smol").values()))
        running = num_running(site, "smol")
        os.kill(max(running, key=running.__getitem__), signal.SIGKILL)
        for answer in answers:
            status, body = answer.result()
            assert status == 200, body
            assert json.loads(body)["usage"]["completion_tokens"] == 400
