"""The newest requests: where their time went, how they ended, and that they can be ended."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from trivet_web.answers.request_log import LENGTH, Course, Entry
from trivet_web.metrics.web_metrics import prepare_folder
from trivet_web.web_process import EXTENSION, METRICS_FOLDER

if TYPE_CHECKING:
    from conftest import Live, Site
    from flask.testing import FlaskClient

    from trivet.errors import TrivetError
    from trivet_web.models.served_models import ServedModel

    OpenClient = Callable[[Site, ServedModel], FlaskClient]

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "canary-prompt-55e1"}], "max_tokens": 4}
ROUTE = "/platform/v1/requests"


def bearer(site: Site) -> dict[str, str]:
    return {"Authorization": f"Bearer {site.token}"}


def listed(site: Site, client: FlaskClient, query: str = "") -> list[dict[str, Any]]:
    answer = client.get(f"{ROUTE}{query}", headers=bearer(site))
    assert answer.status_code == 200, answer.text
    assert "canary" not in answer.text
    found: list[dict[str, Any]] = answer.get_json()["data"]
    return found


def test_a_request_tells_where_its_time_went(site: Site, site_client: FlaskClient) -> None:
    engine = site.start_engine()
    made = site_client.post("/v1/chat/completions", json=CHAT).get_json()
    (one,) = listed(site, site_client)
    assert (one["id"], one["model"], one["route"]) == (made["id"], "demo", "/v1/chat/completions")
    assert (one["status"], one["reason"], one["instance"]) == ("done", "length", engine.instance)
    assert (one["completion_tokens"], one["is_streamed"]) == (4, False)
    assert one["prompt_tokens"] == made["usage"]["prompt_tokens"]
    parts = [one["prepare_s"], one["queue_s"] or 0.0, one["prefill_s"], one["decode_s"]]
    assert all(part >= 0 for part in parts)
    assert sum(parts) <= one["total_s"] + 0.01


def test_a_request_that_fails_says_by_which_code(site: Site, site_client: FlaskClient) -> None:
    site.start_engine("--refuse", "429", "--refuse-code", "overloaded")
    assert site_client.post("/v1/chat/completions", json=CHAT).status_code == 429
    (one,) = listed(site, site_client)
    assert (one["status"], one["reason"]) == ("failed", "overloaded")


def test_the_newest_stand_first_and_can_be_picked(site: Site, site_client: FlaskClient) -> None:
    site.start_engine()
    for number in range(3):
        site_client.post("/v1/chat/completions", json=CHAT | {"max_tokens": number + 1})
    assert [one["completion_tokens"] for one in listed(site, site_client, "?limit=2")] == [3, 2]
    assert listed(site, site_client, "?deployment=other") == []


def test_one_that_runs_is_ended_by_an_operator(
    site: Site, site_client: FlaskClient, eventually: Callable[..., None]
) -> None:
    site.start_engine("--step-s", "0.05")
    answers: list[Any] = []
    client = site_client.application.test_client()
    thread = threading.Thread(
        target=lambda: answers.append(client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 400}))
    )
    thread.start()
    eventually(lambda: [one["status"] for one in listed(site, site_client)] == ["running"], what="it runs")
    (one,) = listed(site, site_client)
    path = f"{ROUTE}/{one['id']}"
    assert site_client.delete(path, headers=bearer(site)).status_code == 204
    thread.join(20)
    assert answers[0].status_code == 503
    assert "the request was ended by the run token" in answers[0].get_json()["error"]["message"]
    assert listed(site, site_client)[0]["status"] == "failed"
    assert site_client.delete(path, headers=bearer(site)).status_code == 404


def test_requests_of_another_web_process_are_seen_and_ended(
    site: Site, served_model: ServedModel, open_client: OpenClient, eventually: Callable[..., None]
) -> None:
    """Two processes as of `web_workers = 2`; here they are two applications of one home."""
    site.settings = msgspec.structs.replace(site.settings, web_workers=2)
    prepare_folder(site.run_dir / METRICS_FOLDER)
    site.start_engine("--step-s", "0.05")
    asked, other = open_client(site, served_model), open_client(site, served_model)
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(asked.post("/v1/chat/completions", json=CHAT | {"max_tokens": 400}))
    )
    thread.start()
    eventually(lambda: [one["status"] for one in listed(site, other)] == ["running"], what="it is seen")
    (one,) = listed(site, other)
    assert other.delete(f"{ROUTE}/{one['id']}", headers=bearer(site)).status_code == 204
    thread.join(20)
    assert answers[0].status_code == 503
    assert "the request was ended by the run token" in answers[0].get_json()["error"]["message"]
    eventually(lambda: [one["status"] for one in listed(site, other)] == ["failed"], what="its end is seen")
    assert len(listed(site, asked.application.test_client())) == 1


def test_the_oldest_of_more_than_are_listed_can_be_ended_by_another_process(
    site: Site, served_model: ServedModel, open_client: OpenClient, eventually: Callable[..., None]
) -> None:
    site.settings = msgspec.structs.replace(site.settings, web_workers=2)
    prepare_folder(site.run_dir / METRICS_FOLDER)
    asked, other = open_client(site, served_model), open_client(site, served_model)
    stopped: list[str] = []
    log = asked.application.extensions[EXTENSION].requests
    for number in range(LENGTH + 1):
        name = f"r{number}"
        stop = partial(_note, stopped, name)
        log.begin(Entry(name, 0.0, float(number), "demo", "/v1/completions", "x", False, Course(), stop))

    def is_told() -> bool:
        return other.delete(f"{ROUTE}/r0", headers=bearer(site)).status_code == 204

    eventually(is_told, what="the other process knows of it")
    eventually(lambda: stopped == ["r0"], what="it is ended")


def _note(stopped: list[str], name: str, error: TrivetError) -> None:
    assert "was ended by the run token" in str(error)
    stopped.append(name)


def test_one_whose_client_went_away_was_cancelled(live: Live, eventually: Callable[..., None]) -> None:
    served = live.serve("--step-s", "0.05")
    body = json.dumps(CHAT | {"model": served.model, "max_tokens": 400, "stream": True})
    with live.server.connect() as client:
        client.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        assert b"200 OK" in client.recv(4096)

    def statuses() -> list[str]:
        asked = urllib.request.Request(f"{live.server.url}{ROUTE}", headers=bearer(live.site))
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return [one["status"] for one in json.load(answer)["data"]]

    eventually(lambda: statuses() == ["cancelled"], what="its end is known")
