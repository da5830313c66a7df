"""The client library against a real HTTP server that speaks our JSON."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from trivet import errors
from trivet.access import local_url
from trivet.client import Client
from trivet.client.home import trust_of
from trivet.client.wire import pool_options
from trivet.config import Settings


def test_defaults_are_the_server_and_the_token_of_this_home(site) -> None:
    with Client() as client:
        status = client.status()
    assert client.base_url == site.url
    assert status.version == "0.1.0"
    assert status.supervisor.up
    assert status.supervisor.as_of.utcoffset().total_seconds() == 0


def test_the_address_that_a_running_server_left_goes_before_the_settings(
    site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVET_PORT", "1")
    (tmp_path / "home/run/url").write_text(site.url)
    with Client() as client:
        assert client.status().version == "0.1.0"


@pytest.mark.parametrize("left", [b"\xff\xfe\x00", b"garbage"])
def test_an_address_that_is_none_is_told_with_its_file(site, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "home/run/url").write_bytes(left)
    with pytest.raises(errors.ConfigError, match=r"run/url holds .* no address of a server; remove it"):
        Client()


def test_the_token_of_this_home_never_goes_to_another_host(site) -> None:
    with Client("http://trivet.invalid:8000") as client:
        assert "authorization" not in client._connection.http.headers
        assert client._connection.http.auth is None


def test_the_token_of_this_home_never_goes_to_another_server_of_this_host(site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        assert Client(url).api_key is None, "any account may listen there"
    assert Client(site.url.replace("127.0.0.1", "localhost")).api_key == "the-token"


def test_the_server_of_this_home_gets_its_token_wherever_it_listens(site, monkeypatch) -> None:
    monkeypatch.setenv("TRIVET_HOST", "192.0.2.1")
    with Client() as client:
        assert client.api_key == "the-token"


def test_the_token_goes_to_nobody_while_this_home_is_not_served(site, tmp_path: Path) -> None:
    (tmp_path / "home/run/serve.lock").write_text(str(2**22 + 1))  # no process has such a pid
    with Client() as client:
        assert client.health()
        with pytest.raises(errors.AuthenticationError):
            client.status()
    assert set(site.authorization) == {None}, "another account may listen there"


def test_a_client_follows_the_token_of_its_home_over_a_restart_of_the_server(site, tmp_path: Path) -> None:
    with Client() as client:
        client.status()
        site.token = "another"
        (tmp_path / "home/run/token").write_text("another")
        assert client.status().version == "0.1.0"
    assert site.authorization == ["Bearer the-token", "Bearer another"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("192.0.2.1", "http://192.0.2.1:8000"),
    ],
)
def test_an_address_for_all_interfaces_is_asked_on_loopback(host: str, url: str) -> None:
    assert local_url(Settings(host=host, port=8000)) == url


def test_a_given_key_goes_before_the_token_of_the_home(site) -> None:
    with Client(api_key="wrong") as client, pytest.raises(errors.AuthenticationError, match="site's token"):
        client.status()
    assert site.authorization == ["Bearer wrong"]


def test_an_unreadable_token_is_named(site, tmp_path: Path) -> None:
    (tmp_path / "home/run/token").unlink()
    (tmp_path / "home/run/token").mkdir()
    with pytest.raises(errors.ConfigError, match="run/token"):
        Client()


def test_stream_yields_text_and_ends_with_the_usage(site) -> None:
    with Client() as client:
        chunks = list(client.chat.stream("m", [{"role": "user", "content": "hi"}], temperature=0))
    assert "".join(chunk.text for chunk in chunks) == "The capital is Paris."
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert chunks[-1].usage.completion_tokens == 5
    method, path, body = site.requests[0]
    assert (method, path) == ("POST", "/v1/chat/completions")
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }


def test_complete_gives_the_whole_answer(site) -> None:
    with Client() as client:
        chat = client.chat.complete("m", [{"role": "user", "content": "hi"}])
        completion = client.completions.complete("m", [1, 2, 3], max_tokens=5)
    assert chat.text == completion.text == "The capital is Paris."
    assert completion.finish_reason == "stop"
    assert chat.usage.total_tokens == 10


def test_completion_stream_yields_text(site) -> None:
    with Client() as client:
        assert "".join(c.text for c in client.completions.stream("m", "x")) == "The capital is Paris."


def test_an_error_event_raises_what_the_server_names(site) -> None:
    site.break_stream = "error"
    with Client() as client:
        stream = client.chat.stream("m", [])
        assert [next(stream).text, next(stream).text] == ["The", " capital"]  # what came before it
        with pytest.raises(errors.EngineLost, match="engine 7 was killed"):
            next(stream)


def test_a_stream_that_is_cut_is_an_error_and_no_short_answer(site) -> None:
    site.break_stream = "cut"
    with Client() as client, pytest.raises(errors.Unavailable, match=r"ended before \[DONE\]"):
        list(client.chat.stream("m", []))


def test_a_full_queue_tells_when_to_come_again(site) -> None:
    with Client(max_retries=0) as client, pytest.raises(errors.Overloaded, match="queue is full") as caught:
        list(client.chat.stream("busy", []))
    assert caught.value.retry_after_s == 7


def test_deployments_are_created_scaled_and_stopped(site) -> None:
    with Client() as client:
        created = client.deployments.create("smollm2", name="a b", settings={"dtype": "bf16"})
        assert (created.name, created.instances) == ("a b", ())  # the supervisor makes them
        assert client.deployments.scale("a b", 2).replicas == 2
        client.deployments.stop("a b", drain_timeout_s=1.5)
        assert client.deployments.get("a b").desired == "stopped"
    assert site.requests[0][2] == {
        "model": "smollm2",
        "name": "a b",
        "backend": "auto",
        "replicas": 1,
        "settings": {"dtype": "bf16"},
    }
    assert site.requests[2][:2] == ("DELETE", "/platform/v1/deployments/a b?drain_timeout_s=1.5")


def test_a_name_that_runs_already_is_a_conflict(site) -> None:
    with Client() as client:
        client.deployments.create("smollm2")
        with pytest.raises(errors.Conflict, match="runs already"):
            client.deployments.create("smollm2")


def test_a_name_of_any_characters_is_part_of_the_path(site) -> None:
    with Client() as client, pytest.raises(errors.NotFound, match="'a\\?b#c' does not exist"):
        client.deployments.get("a?b#c")


def test_ended_instances_are_listed_if_asked(site) -> None:
    site.boot = ["stopped"]
    with Client() as client:
        client.deployments.create("smollm2")
        assert client.instances.list() == ()
        assert [instance.state for instance in client.instances.list(ended=True)] == ["stopped"]


def test_a_deployment_that_is_not_there_is_not_found(site) -> None:
    with Client() as client, pytest.raises(errors.NotFound, match="'nope' does not exist"):
        client.deployments.get("nope")


def test_instances_carry_plan_and_load(site) -> None:
    with Client() as client:
        client.deployments.create("smollm2")
        (instance,) = client.instances.list("smollm2")
    assert instance.plan.num_blocks == (129,)
    assert instance.load.kv_usage == 0.25
    assert instance.created_at.tzinfo is not None


def test_models_are_added_found_and_removed(site) -> None:
    with Client() as client:
        version = client.models.add("/models/a.gguf", "a")
        assert (version.version, version.quantization) == (1, "q4_1")
        assert client.models.get("a").versions == (version,)
        client.models.remove("a")
        with pytest.raises(errors.ModelNotFound, match="is not registered"):
            client.models.get("a")


def test_events_devices_and_logs(site) -> None:
    with Client() as client:
        (event,) = client.events("d", limit=3)
        assert (event.source, event.target, event.reason) == ("starting", "loading", "weights")
        assert client.events()
        assert site.requests[-1][1] == "/platform/v1/events?limit=100"
        assert client.devices()[0].uid == "host"  # and a field of a newer server is ignored
        assert "".join(client.logs("i1", tail=3, attempt=2)) == site.log
    assert site.requests[-1][1] == "/platform/v1/logs/i1?attempt=2&tail=3&follow=0"


def test_plan_is_typed(site) -> None:
    with Client() as client:
        plan = client.plan("smollm2", settings={"max_model_len": "1024"})
    assert plan.fits
    assert [part.name for part in plan.parts] == ["weights", "kv"]


def test_health_tells_answering_from_serving(site) -> None:
    with Client() as client:
        assert client.health()
        assert not client.health(ready=True)
        client.deployments.create("smollm2")
        assert client.health(ready=True)


def test_where_nothing_listens_the_message_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with Client(url) as client:
            assert not client.health()
            with pytest.raises(errors.Unavailable, match="trivet serve"):
                client.status()


def test_a_server_that_stays_silent_runs_into_the_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2) as client,
        pytest.raises(errors.Unavailable, match="nothing in time"),
    ):
        client.models.list()


def test_a_proxy_of_the_environment_is_not_asked_about_this_host(site, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Client() as client:
        assert client.health()


def test_a_pool_that_is_full_waits_for_its_own_requests(site) -> None:
    with Client(max_connections=1, timeout_s=5) as client:
        stream = client.chat.stream("m", [])
        next(stream)
        stream.close()  # gives the connection back
        assert client.health()


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://h:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="http://HOST:PORT"):
        Client(url)


@pytest.mark.parametrize("url", ["HTTPS://gpu.example:8000", "https://gpu.example:8000"])
def test_tls_is_verified_however_its_scheme_is_written(url: str) -> None:
    trusted = trust_of(url, None)
    assert trusted is not None
    assert trusted.verify_mode == ssl.CERT_REQUIRED
    assert pool_options(url, "key", 1, None)["verify"] is True
    assert pool_options("HTTP://gpu.example", "key", 1, None)["verify"] is False
