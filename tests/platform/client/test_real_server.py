"""The client against the real web application: what it asks is what the server understands.

There is no supervisor, so nothing starts; everything else is real, registry and model files included.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from trivet import errors
from trivet.client import Client
from trivet.config import load_settings
from trivet.demo_model import find_demo_model


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    from trivet_web.app import create_app
    from trivet_web.web_process import EXTENSION

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIVET_HOME", str(tmp_path_factory.mktemp("home")))
        settings = load_settings()
        app = create_app(settings)
        settings.paths.lock_file.write_text(str(os.getpid()))  # as `trivet serve` writes itself there
        server = make_server("127.0.0.1", 0, app, threaded=True)
        patch.setenv("TRIVET_PORT", str(server.server_port))
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        with Client() as client:
            yield client
        server.shutdown()
        thread.join(10)
        server.server_close()
        app.extensions[EXTENSION].close()


@pytest.fixture(scope="module")
def registered(client: Client) -> str:
    client.models.add(str(find_demo_model()), "demo")
    return "demo"


def test_status_tells_that_no_supervisor_lives(client: Client) -> None:
    status = client.status()
    assert status.version
    assert not status.supervisor.up
    assert client.health()
    assert not client.health(ready=True)


def test_a_wrong_token_is_refused(client: Client) -> None:
    with Client(client.base_url, "wrong") as stranger, pytest.raises(errors.AuthenticationError):
        stranger.status()


def test_a_registered_model_is_listed_with_what_its_files_say(client: Client, registered: str) -> None:
    (version,) = client.models.get(registered).versions
    assert (version.version, version.format, version.quantization) == (1, "gguf", "q4_1")
    assert version.architecture == "LlamaForCausalLM"
    assert version.context_length == 8192
    assert version.created_at is not None


def test_a_file_that_is_no_model_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(errors.ModelFilesError, match=r"x\.gguf"):
        client.models.add(str(tmp_path / "x.gguf"))


def test_the_plan_is_the_one_that_this_host_would_make(client: Client, registered: str) -> None:
    settings = {"max_model_len": "256", "num_gpu_blocks_override": "65"}
    plan = client.plan(registered, backend="cpu", settings=settings)
    assert plan.fits
    assert plan.num_blocks == (65,)
    assert {part.name for part in plan.parts} >= {"weights", "kv"}
    refused = client.plan(registered, backend="cpu", settings={"gpu_memory_utilization": "0.0001"})
    assert not refused.fits
    assert refused.reason


def test_a_wrong_setting_comes_back_as_a_configuration_error(client: Client, registered: str) -> None:
    with pytest.raises(errors.ConfigError, match="did you mean 'max_model_len'"):
        client.plan(registered, settings={"max_model_length": "1"})


def test_a_deployment_is_wanted_scaled_and_stopped(client: Client, registered: str) -> None:
    made = client.deployments.create(registered, name="d", backend="null", settings={"seed": "3"})
    assert (made.name, made.model, made.version, made.desired) == ("d", "demo", 1, "running")
    assert made.settings == {"seed": "3"}
    with pytest.raises(errors.Conflict, match="runs already"):
        client.deployments.create(registered, name="d")
    with pytest.raises(errors.Conflict):
        client.models.remove(registered)
    assert client.deployments.scale("d", 2).replicas == 2
    assert "d" in [deployment.name for deployment in client.deployments.list()]
    assert client.instances.list("d", ended=True) == ()
    client.deployments.stop("d", drain_timeout_s=0.5)
    assert client.deployments.get("d").desired == "stopped"
    (last,) = client.events("d", limit=1)
    assert (last.kind, last.target) == ("deployment", "stopped")


def test_what_is_not_there_is_not_found(client: Client) -> None:
    with pytest.raises(errors.NotFound):
        client.deployments.get("nope")
    with pytest.raises(errors.NotFound):
        list(client.logs("nope"))
    with pytest.raises(errors.ModelNotFound):
        client.deployments.create("nope")
    with pytest.raises(errors.ModelNotFound):
        list(client.chat.stream("nope", [{"role": "user", "content": "hi"}]))


def test_what_nothing_serves_yet_is_unavailable(client: Client, registered: str) -> None:
    client.deployments.create(registered, name="waiting", backend="null")
    with pytest.raises(errors.Unavailable):
        client.completions.complete("waiting", "hi", max_tokens=1)
    (served,) = client.models.served()
    assert (served.id, served.ready) == ("waiting", False)
    client.deployments.stop("waiting")


def test_nodes_are_those_of_devices_and_instances(client: Client) -> None:
    (own,) = client.nodes()
    assert own.host == ""
    assert list(own.instances) == [one.id for one in client.instances.list()]


def test_devices_are_those_that_a_supervisor_saw(client: Client) -> None:
    assert client.devices() == ()
