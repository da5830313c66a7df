"""What clients behind nginx see of restarts: of one of two sites, of the web server, of the only site."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from front import Curl

if TYPE_CHECKING:
    from conftest import Site  # of end_to_end
    from front import Front

SETTINGS = 'num_proxies = 1\nallowed_hosts = "llm.example.com"\n'  # open to all: sites do not share keys
BODY = {"model": "m", "prompt": "x", "max_tokens": 20, "ignore_eos": True}


@pytest.fixture
def sites(site: Site) -> Iterator[tuple[Site, Site]]:
    with tempfile.TemporaryDirectory(prefix="tv") as home:
        other = type(site)(Path(home))
        for one in (site, other):
            (one.home / "trivet.toml").write_text(SETTINGS)
            one.serve()
            one.launch("m", "null", **{"options.step_ms": "5"})
        yield site, other
        other.clean_up()


class Crowd:
    """Clients that ask on and on; every answer but a whole one is kept."""

    def __init__(self, front: Front) -> None:
        self.num_answers = 0
        self.wrong: list[str] = []
        self._front = front
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n % 2 == 0,)) for n in range(6)]
        for thread in self._threads:
            thread.start()

    def _ask(self, stream: bool) -> None:
        with self._front.client() as client:
            while not self._is_over.is_set():
                answer = client.post("/v1/completions", json={**BODY, "stream": stream})
                is_whole = (
                    answer.text.endswith("data: [DONE]\n\n") and 'data: {"error"' not in answer.text
                    if stream
                    else answer.status_code == 200
                )
                if not is_whole:
                    self.wrong.append(f"{answer.status_code} {answer.text[-300:]}")
                self.num_answers += 1

    def go(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(120)


def restart(site: Site) -> None:
    assert site.stop() == 0
    site.serve()
    site.wait_ready("m")


def web_master(site: Site) -> psutil.Process:
    assert site.parent is not None
    (found,) = (
        child for child in psutil.Process(site.parent.pid).children() if "trivet_web" in child.cmdline()
    )
    return found


def test_two_sites_restarted_one_after_the_other_fail_no_request(
    sites: tuple[Site, Site], new_front: Callable[..., Front]
) -> None:
    front = new_front(*(site.port for site in sites), changes=LIMITS)
    crowd = Crowd(front)
    try:
        for site in sites:
            before = crowd.num_answers
            site.wait_for("requests are answered", lambda: crowd.num_answers > before + 50)  # noqa: B023
            restart(site)
    finally:
        crowd.go()
    assert crowd.wrong == []


LIMITS = {"rate=50r/s": "rate=5000r/s"}  # all clients of a test have one address


def test_a_web_server_that_is_told_to_begin_anew_fails_no_request(
    site: Site, new_front: Callable[..., Front]
) -> None:
    (site.home / "trivet.toml").write_text(SETTINGS)
    site.serve()
    site.launch("m", "null", **{"options.step_ms": "5"})
    crowd = Crowd(new_front(site.port, changes=LIMITS))
    try:
        for _ in range(2):
            workers = {child.pid for child in web_master(site).children()}
            before = crowd.num_answers
            web_master(site).send_signal(signal.SIGHUP)
            site.wait_for(
                "other workers answer",
                lambda: not workers & {child.pid for child in web_master(site).children()},  # noqa: B023
            )
            site.wait_for("requests are answered", lambda: crowd.num_answers > before + 50)  # noqa: B023
    finally:
        crowd.go()
    assert crowd.wrong == []


def test_a_site_that_is_ended_finishes_its_streams_and_tells_newcomers_to_come_later(
    site: Site, new_front: Callable[..., Front]
) -> None:
    (site.home / "trivet.toml").write_text(SETTINGS)
    site.serve()
    site.launch("m", "null", **{"options.step_ms": "50"})
    front = new_front(site.port)
    text = json.dumps({**BODY, "stream": True, "max_tokens": 200})
    streams = [Curl(front, http, "", "/v1/completions", text) for http in ("1.1", "2") * 4]
    first = [next(stream.reads()) for stream in streams]
    assert site.parent is not None
    site.parent.send_signal(signal.SIGTERM)
    with front.client() as client:
        refused = []

        def is_refused() -> bool:
            answer = client.post("/v1/completions", json=BODY)
            refused.append(answer)
            return answer.status_code == 503

        site.wait_for("newcomers are refused", is_refused)
        assert site.parent.poll() is None  # it still drains
        assert refused[-1].json()["error"]["type"] == "server_error"
        answers = [begun + b"".join(stream.reads()) for begun, stream in zip(first, streams, strict=True)]
        assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
        assert all(b'data: {"error"' not in answer for answer in answers)
        for stream in streams:
            stream.hang_up()
        assert site.parent.wait(60) == 0
        gone = client.get("/v1/models")
        assert (gone.status_code, gone.headers["Retry-After"]) == (503, "5")
        assert gone.json()["error"]["code"] == "unavailable"
        site.serve()
        site.wait_ready("m")
        assert client.post("/v1/completions", json=BODY).status_code == 200
