"""A site behind nginx as docker/nginx/trivet.conf sets it up: streams, hang-ups, addresses, limits."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import openai
import pytest
from front import Curl, num_events

if TYPE_CHECKING:
    from conftest import Site  # of end_to_end
    from front import Front

SETTINGS = 'auth = "required"\nnum_proxies = 1\nallowed_hosts = "llm.example.com"\n'
PASSWORD = "correct horse battery"
HTTP = ("1.1", "2")


def body(model: str, **fields: object) -> str:
    return json.dumps({"model": model, "prompt": "x", "ignore_eos": True, **fields})


@pytest.fixture(scope="module")
def served(home_of_module: Site) -> Site:
    """ "flowing" makes a token each 50 ms; of "slow" the first one takes 2 s."""
    (home_of_module.home / "trivet.toml").write_text(SETTINGS)
    home_of_module.serve()
    home_of_module.launch("flowing", "null", **{"options.step_ms": "50"})
    home_of_module.launch("slow", "null", **{"options.step_ms": "2000"})
    with home_of_module.client() as client:
        client.users.create("ada", PASSWORD, "admin")
    return home_of_module


@pytest.fixture(scope="module")
def front(served: Site, new_front: Callable[..., Front]) -> Front:
    return new_front(served.port)


def num_running(site: Site, name: str) -> int:
    with site.client() as client:
        return sum(one.load.num_running if one.load else 0 for one in client.instances.list(name))


@pytest.mark.parametrize("http", HTTP)
def test_each_token_comes_by_itself_while_the_engine_goes_on(served: Site, front: Front, http: str) -> None:
    """Of buffers of 4 kB each read would bring 20 events; a machine that stalls makes some large, not all."""
    stream = Curl(front, http, served.token, "/v1/completions", body("flowing", stream=True, max_tokens=1000))
    try:
        counts: list[int] = []
        for data in stream.reads():
            counts.append(num_events(data))
            if sum(counts) >= 60:
                break
        assert sum(count <= 2 for count in counts) >= 10, counts
        assert num_running(served, "flowing") == 1
    finally:
        stream.hang_up()
    served.wait_for("it is aborted", lambda: num_running(served, "flowing") == 0)


@pytest.mark.parametrize("http", HTTP)
def test_a_client_that_hangs_up_before_the_first_token_is_aborted(
    served: Site, front: Front, http: str
) -> None:
    stream = Curl(front, http, served.token, "/v1/completions", body("slow", stream=True, max_tokens=500))
    served.wait_for("it runs", lambda: num_running(served, "slow") == 1)
    stream.hang_up()
    served.wait_for("it is aborted", lambda: num_running(served, "slow") == 0)


def test_a_whole_answer_whose_client_hangs_up_is_aborted(served: Site, front: Front) -> None:
    waiting = Curl(front, "1.1", served.token, "/v1/completions", body("flowing", max_tokens=2000))
    served.wait_for("it runs", lambda: num_running(served, "flowing") == 1)
    waiting.hang_up()
    served.wait_for("it is aborted", lambda: num_running(served, "flowing") == 0)


def test_other_dialects_and_the_console_stream_too(served: Site, front: Front) -> None:
    with front.client(served.token) as client:
        lines = {"model": "flowing", "prompt": "x", "options": {"num_predict": 500}}
        with client.stream("POST", "/api/generate", json=lines) as answer:
            assert json.loads(next(answer.iter_lines()))["done"] is False
        with client.stream("GET", "/console/events?topics=instances") as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert any(line.startswith("data: ") for line in answer.iter_lines())


def test_the_log_of_acts_has_the_clients_own_address(served: Site, front: Front) -> None:
    """And nothing that a client says of itself: neither an address nor a name of this server."""
    forged = {
        "X-Forwarded-For": "203.0.113.9",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "http",
    }
    with front.client(served.token, address="127.0.0.77") as client:
        made = client.post("/platform/v1/keys", json={"name": "forged"}, headers=forged)
    assert made.status_code == 201, made.text
    assert "max-age" in made.headers["Strict-Transport-Security"]  # so Trivet knows that it is https
    with served.client() as client:
        newest = client.audit.list(limit=1)[0]
    assert (newest.target, newest.address) == (newest.target, "127.0.0.77")
    assert front.log_with("/platform/v1/keys")


def test_a_page_of_the_console_logs_in_with_a_secure_cookie(served: Site, front: Front) -> None:
    login = {"name": "ada", "password": PASSWORD}
    with front.client() as client:
        own = client.post("/platform/v1/sessions", json=login, headers={"Origin": front.url})
        assert own.status_code == 201, own.text
        assert own.headers["Set-Cookie"].startswith("__Host-trivet=")
        assert "Secure" in own.headers["Set-Cookie"].split("; ")
        other = client.post("/platform/v1/sessions", json=login, headers={"Origin": "https://evil.example"})
        assert other.status_code == 403
        stranger = client.get("/v1/models", headers={"Host": "evil.example"})
        assert stranger.status_code == 400
        known = client.get("/health/live", headers={"Host": "llm.example.com"})
        assert known.status_code == 200


def test_a_setup_link_leaves_no_secret_in_the_log(front: Front) -> None:
    with front.client() as client:
        client.get("/setup?token=planted-secret")
    assert "planted-secret" not in front.log_with('"GET /setup"')


def test_plain_http_is_sent_to_https_and_old_tls_is_refused(front: Front) -> None:
    with front.client() as client:
        moved = client.get(f"http://localhost:{front.plain_port}/v1/models?a=b")
    assert moved.status_code == 308
    assert moved.headers["Location"] == "https://localhost/v1/models?a=b"
    old = front.tls
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", front.port), timeout=30) as plain,
        pytest.raises(ssl.SSLError),
        old.wrap_socket(plain, server_hostname="localhost"),
    ):
        pass


def test_bodies_are_limited_as_trivet_limits_them(served: Site, front: Front) -> None:
    with front.client(served.token) as client:
        large = client.post("/v1/completions", json={"model": "flowing", "prompt": "y" * (9 << 20)})
        assert large.status_code == 413
        assert large.json()["error"]["code"] == "request_too_large"
        lines = (
            json.dumps(
                {
                    "custom_id": f"{n}",
                    "method": "POST",
                    "url": "/v1/completions",
                    "body": {"model": "flowing", "prompt": "y" * (1 << 20)},
                }
            )
            for n in range(12)
        )
        kept = client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", "\n".join(lines).encode())}
        )
    assert kept.status_code == 200, kept.text
    assert kept.json()["bytes"] > 12 << 20


def test_an_upload_that_is_refused_at_once_is_told_why_and_not_of_a_broken_server(front: Front) -> None:
    upload = {"file": ("in.jsonl", bytes(24 << 20))}
    with front.client("of nobody") as client:
        answers = [client.post("/v1/files", data={"purpose": "batch"}, files=upload) for _ in range(10)]
    assert [answer.status_code for answer in answers] == [401] * 10
    assert answers[-1].json()["error"]["code"] == "invalid_api_key"


def test_too_many_requests_of_one_address_are_a_429_that_clients_understand(
    served: Site, new_front: Callable[..., Front]
) -> None:
    front = new_front(served.port, changes={"rate=50r/s": "rate=1r/m", "burst=200": "burst=3"})
    with front.client(served.token, "127.0.0.78") as client:
        answers = [client.get("/health/live") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 429]
    assert answers[-1].headers["Retry-After"] == "1"
    assert answers[-1].headers["Content-Type"] == "application/json"
    with (
        front.client(address="127.0.0.78") as http_client,
        pytest.raises(openai.RateLimitError) as refused,
        openai.OpenAI(
            base_url=f"{front.url}/v1", api_key=served.token, max_retries=0, http_client=http_client
        ) as client,
    ):
        client.models.list()
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.type == "rate_limit_error"
    with front.client(served.token, "127.0.0.79") as other:
        assert other.get("/health/live").status_code == 200


def test_requests_under_way_are_limited_for_each_address(
    served: Site, new_front: Callable[..., Front]
) -> None:
    front = new_front(served.port, changes={"limit_conn trivet_streams 100": "limit_conn trivet_streams 2"})
    streams = [
        Curl(front, "2", served.token, "/v1/completions", body("flowing", stream=True, max_tokens=2000))
        for _ in range(2)
    ]
    try:
        for stream in streams:
            next(stream.reads())
        with front.client(served.token) as client:
            assert client.get("/v1/models").status_code == 429
        with front.client(served.token, "127.0.0.80") as other:
            assert other.get("/v1/models").status_code == 200
    finally:
        for stream in streams:
            stream.hang_up()


def test_what_trivet_refuses_itself_passes_as_it_is(served: Site, front: Front) -> None:
    with served.client() as client:
        key = client.keys.create("one a minute", requests_per_minute=1).key
    with front.client(key or "") as client:
        assert client.get("/v1/models").status_code == 200
        refused = client.get("/v1/models")
        wrong = client.post(
            "/v1/completions",
            json={"model": "nothing", "prompt": "x"},
            headers={"Authorization": f"Bearer {served.token}"},
        )
    assert refused.status_code == 429
    assert "has had its requests of this minute (1)" in refused.json()["error"]["message"]
    assert int(refused.headers["Retry-After"]) > 5
    assert wrong.json()["error"]["code"] == "model_not_found"


def test_a_slow_upload_is_waited_for(served: Site, front: Front) -> None:
    """Longer than the 10 s that Trivet itself gives to a whole request."""
    half = threading.Event()

    def parts() -> object:
        text = body("flowing", max_tokens=1).encode()
        yield text[:10]
        half.wait(11)
        yield text[10:]

    with front.client(served.token) as client:
        answer = client.post("/v1/completions", content=parts(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
