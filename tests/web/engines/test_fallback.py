"""Who answers where a deployment is full, late or gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import httpx2
import pytest

from trivet_registry.deployments_store import get_deployment
from trivet_web.engines.fallback import HEADER

if TYPE_CHECKING:
    from conftest import Eventually, Live


def set_fallback(live: Live, name: str, fallback: str) -> None:
    """C.f. `trivet launch --fallback`; the routing table sees it within half a second."""
    with live.site.database.session() as session:
        get_deployment(session, name).fallback = fallback


def ask(live: Live, model: str, *, stream: bool) -> httpx2.Response:
    body = {"model": model, "prompt": "a b c", "max_tokens": 3, "stream": stream}
    return httpx2.post(f"{live.server.url}/v1/completions", json=body, timeout=30)


REFUSALS = {
    "full": ("--refuse", "429"),
    "late": ("--refuse", "503", "--refuse-code", "deadline_passed"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_the_fallback_answers_and_is_named(live: Live, refusal: str, stream: bool) -> None:
    first, second = live.serve(*REFUSALS[refusal]), live.serve()
    set_fallback(live, first.model, second.model)
    answer = ask(live, first.model, stream=stream)
    assert answer.status_code == 200
    assert answer.headers[HEADER] == second.model
    assert "w0 w1 w2" in answer.text.replace('"}]', "") or "w2" in answer.text
    assert f'"model":"{second.model}"' in answer.text
    assert not stream or answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_an_adapter_falls_back_to_the_adapter_of_its_name_and_to_no_other_model(
    live: Live, stream: bool, eventually: Eventually
) -> None:
    first, bare = live.serve("--refuse", "429", "--adapters", "sql"), live.serve()
    having = live.serve("--adapters", "sql")
    for one in (first, having):
        eventually(lambda wanted=f'"{one.model}:sql"': wanted in live.server.get("/v1/models")[1].decode())
    set_fallback(live, first.model, bare.model)
    answer = ask(live, f"{first.model}:sql", stream=stream)
    assert (answer.status_code, HEADER in answer.headers) == (429, False)
    assert ask(live, first.model, stream=stream).headers[HEADER] == bare.model
    set_fallback(live, first.model, having.model)
    answer = ask(live, f"{first.model}:sql", stream=stream)
    assert (answer.status_code, answer.headers[HEADER]) == (200, having.model)
    assert "sql2" in answer.text
    assert f'"model":"{having.model}:sql"' in answer.text


def test_a_deployment_that_cannot_serve_has_its_fallback_too(live: Live) -> None:
    second = live.serve()
    live.site.deploy("asleep")
    set_fallback(live, "asleep", second.model)
    assert ask(live, "asleep", stream=False).headers[HEADER] == second.model


def test_fallbacks_are_asked_in_turn_and_the_first_failure_is_the_one_that_is_told(live: Live) -> None:
    first, second, third = live.serve("--refuse", "429"), live.serve("--refuse", "429"), live.serve()
    set_fallback(live, first.model, second.model)
    set_fallback(live, second.model, third.model)
    assert ask(live, first.model, stream=True).headers[HEADER] == third.model
    set_fallback(live, second.model, first.model)  # in a circle
    refused = ask(live, first.model, stream=True)
    assert refused.status_code == 429
    assert HEADER not in refused.headers


def test_what_an_operator_ends_is_not_begun_anew_by_the_fallback(live: Live, eventually: Eventually) -> None:
    first, second = live.serve("--first-s", "60"), live.serve()
    set_fallback(live, first.model, second.model)
    with ThreadPoolExecutor(1) as pool, httpx2.Client(base_url=live.server.url, timeout=30) as http:
        asked = pool.submit(ask, live, first.model, stream=False)
        http.headers["Authorization"] = f"Bearer {live.site.token}"

        def running() -> list[str]:
            found = http.get("/platform/v1/requests", params={"deployment": first.model}).json()["data"]
            return [one["id"] for one in found if one["status"] == "running"]

        eventually(running, what="it runs")
        for name in running():
            assert http.delete(f"/platform/v1/requests/{name}").status_code == 204
        answer = asked.result(30)
        shown = http.get("/platform/v1/requests", params={"deployment": second.model}).json()["data"]
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "request_ended")
    assert HEADER not in answer.headers
    assert shown == []


def test_a_fault_of_the_request_is_nobody_elses_work(live: Live) -> None:
    first, second = live.serve(), live.serve()
    set_fallback(live, first.model, second.model)
    body = {"model": first.model, "prompt": "a", "max_tokens": -1}
    answer = httpx2.post(f"{live.server.url}/v1/completions", json=body)
    assert (answer.status_code, HEADER in answer.headers) == (400, False)
