"""More requests than an engine has room for, through every layer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai
import pytest

MODEL = "busy"
DEADLINE_S = 30.0
STEP_MS = 20
ENDLESS = 2000  # tokens: 40 s alone


@pytest.fixture(scope="module")
def sdk(shared_site: Any) -> openai.OpenAI:
    """One sequence at a time, two may wait."""
    settings = {"options.step_ms": str(STEP_MS), "max_num_seqs": "1", "max_num_waiting": "2"}
    shared_site.launch(MODEL, "null", **settings)
    return openai.OpenAI(base_url=f"{shared_site.base_url}/v1", api_key="unused", max_retries=0)


def ask(sdk: openai.OpenAI, prompt: str = "gold", max_tokens: int = 1, **extra: Any) -> Any:
    body = {"ignore_eos": True, **extra}
    return sdk.completions.create(model=MODEL, prompt=prompt, max_tokens=max_tokens, extra_body=body)


@contextmanager
def busy(sdk: openai.OpenAI, shared_site: Any) -> Iterator[openai.Stream[Any]]:
    """A request runs until its stream is closed."""
    asked: Any = {"model": MODEL, "prompt": "gold", "max_tokens": ENDLESS, "extra_body": {"ignore_eos": True}}
    with sdk.completions.create(**asked, stream=True) as running:
        wait_for_load(shared_site, 1)
        yield running


def wait_for_load(shared_site: Any, count: int) -> None:
    end_s = time.monotonic() + DEADLINE_S
    with shared_site.client() as client:
        while True:
            load = client.instances.list(MODEL)[0].load  # none before its first report
            if load is not None and load.num_running + load.num_waiting >= count:
                return
            assert time.monotonic() < end_s, f"{count} requests did not show: {load}"
            time.sleep(0.02)


def test_a_timeout_that_passes_in_the_queue_is_503_with_retry_after(
    sdk: openai.OpenAI, shared_site: Any
) -> None:
    with busy(sdk, shared_site):
        with pytest.raises(openai.InternalServerError) as caught:
            ask(sdk, timeout=0.3)
        assert caught.value.status_code == 503
        assert caught.value.code == "deadline_passed"
        assert int(caught.value.response.headers["Retry-After"]) >= 1


def test_a_timeout_that_passes_while_it_runs_ends_with_what_there_is(sdk: openai.OpenAI) -> None:
    answer = ask(sdk, max_tokens=ENDLESS, timeout=2.0)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.stop_reason) == ("length", "deadline")
    assert 0 < answer.usage.completion_tokens < ENDLESS


def test_the_lower_priority_runs_first_though_it_came_later(sdk: openai.OpenAI, shared_site: Any) -> None:
    ended: list[int] = []

    def wait_in_line(priority: int) -> None:
        ask(sdk, max_tokens=10, priority=priority)
        ended.append(priority)

    with ThreadPoolExecutor(2) as pool:
        with busy(sdk, shared_site):
            asked = [pool.submit(wait_in_line, 5)]
            wait_for_load(shared_site, 2)
            asked.append(pool.submit(wait_in_line, 0))
            wait_for_load(shared_site, 3)
        for one in asked:
            one.result()
    assert ended == [0, 5]


def test_a_full_queue_is_429_with_retry_after(sdk: openai.OpenAI, shared_site: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        with busy(sdk, shared_site):
            asked = [pool.submit(ask, sdk) for _ in range(2)]
            wait_for_load(shared_site, 3)
            with pytest.raises(openai.RateLimitError) as caught:
                ask(sdk)
            assert caught.value.code == "overloaded"
            assert int(caught.value.response.headers["Retry-After"]) >= 1
        assert all(one.result().choices[0].finish_reason == "length" for one in asked)


def test_a_prefix_is_found_until_the_cache_is_reset(sdk: openai.OpenAI, shared_site: Any) -> None:
    prompt = "the metals are gold and iron and lead " * 40

    def cached() -> int:
        usage = ask(sdk, prompt, max_tokens=1).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    assert (cached(), cached() > 0) == (0, True)
    with shared_site.client() as client:
        (instance,) = client.instances.list(MODEL)
        assert client.instances.reset_prefix_cache(instance.id) > 0
    assert cached() == 0
