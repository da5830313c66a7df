"""Several replicas behind one name, with real engines: balance, deaths, stalls, more and fewer of them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from conftest import Site

NUM_REPLICAS = 3
PROMPT = "The heaviest of all metals that are stable is"


@pytest.fixture(scope="module")
def replicated(site_of_module: Site) -> Site:
    """ "m" has three replicas, each of which takes 2 ms a step and runs four sequences at once."""
    options = {"options.step_ms": "2", "max_num_seqs": "4", "max_model_len": "2048"}
    site_of_module.launch("m", "null", NUM_REPLICAS, **options)
    return site_of_module


@pytest.fixture
def site(replicated: Site) -> Site:
    """All replicas are ready, whatever the test before did."""
    replicated.wait_ready("m", NUM_REPLICAS)
    return replicated


def ask(site: Site, max_tokens: int, *, stream: bool = False) -> tuple[int, str]:
    """Status and body of a completion."""
    body = {"model": "m", "prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    answer = httpx2.post(f"{site.base_url}/v1/completions", json=body, timeout=60)
    return answer.status_code, answer.text


def counters(site: Site) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every counter of the page, and every sum and count of a histogram, by name and labels."""
    page = httpx2.get(f"{site.base_url}/metrics").text
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.type in ("counter", "histogram")
    }


def finished(site: Site) -> Counter[str]:
    """Sequences that each instance has ended, ever."""
    counts: Counter[str] = Counter()
    for (name, (_, instance, *_)), value in counters(site).items():
        if name == "trivet:request_success_total":
            counts[instance] += int(value)
    return counts


def num_running(site: Site) -> dict[int, int]:
    """Sequences at work, by the pid of their engine."""
    with site.client() as client:
        return {i.pid: i.load.num_running for i in client.instances.list("m") if i.pid and i.load}


def test_equal_requests_are_spread_within_a_tenth_of_the_mean(site: Site) -> None:
    num_requests = 240
    before = finished(site)
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: ask(site, 16), range(num_requests)))
    assert [status for status, _ in answers] == [200] * num_requests
    site.wait_for(
        "every engine has told what it ended", lambda: (finished(site) - before).total() == num_requests
    )
    counts = (finished(site) - before).values()
    mean = num_requests / NUM_REPLICAS
    assert len(counts) == NUM_REPLICAS
    assert all(abs(count - mean) <= 0.1 * mean for count in counts), counts


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
        os.kill(frozen, signal.SIGCONT)
    before = finished(site)[instance]
    site.wait_for("it serves again", lambda: ask(site, 4)[0] == 200 and finished(site)[instance] > before)
    assert frozen in site.engine_pids(), "its process went on"


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
