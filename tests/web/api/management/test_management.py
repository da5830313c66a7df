"""/platform/v1 on a real registry: what console, command line and client library rely on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trivet.contract import DeviceInfo
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.demo_model import find_demo_model
from trivet_null.backend import NullBackend
from trivet_registry.devices_store import save_devices
from trivet_registry.instance_state import InstanceState as State
from trivet_registry.instances_store import update_instance
from trivet_registry.tables import Instance

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

ROOT = "/platform/v1"


class Api:
    """The management API with its token."""

    def __init__(self, client: FlaskClient, token: str) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {token}"}

    def __call__(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        given = {} if body is None else {"json": body}
        response = self._client.open(f"{ROOT}{path}", method=method, headers=self._headers, **given)
        assert response.status_code == status, response.data
        return response.get_json() if response.data else None

    def text(self, path: str) -> str:
        return self._client.get(f"{ROOT}{path}", headers=self._headers).get_data(as_text=True)


@pytest.fixture
def api(site: Site, site_client: FlaskClient) -> Api:
    return Api(site_client, site.token)


def test_status_says_that_no_supervisor_answers(api: Api) -> None:
    status = api("GET", "/status")
    assert status["supervisor"] == {"up": False, "pid": None, "as_of": None, "problem": ""}
    assert status["auth"] == "auto"


def test_models_are_registered_listed_and_removed(api: Api) -> None:
    path = str(find_demo_model())
    made = api("POST", "/models", {"path": path, "name": "mine"}, 201)
    assert (made["name"], made["version"], made["format"]) == ("mine", 1, "gguf")
    assert api("POST", "/models", {"path": path, "name": "mine"}, 201) == made
    assert [model["name"] for model in api("GET", "/models")["data"]] == ["mine", "smollm2"]
    assert api("DELETE", "/models/mine", status=204) is None
    assert api("DELETE", "/models/mine", status=404)["error"]["code"] == "model_not_found"
    assert api("DELETE", "/models/smollm2", status=409)["error"]["code"] == "conflict"


def test_versions_tell_of_their_files_and_aliases(api: Api) -> None:
    path = str(find_demo_model())
    api("POST", "/models", {"path": path, "name": "mine"}, 201)
    api("PUT", "/aliases/mine/prod", {"version": "1"})
    details = api("GET", "/versions/mine:prod")
    (file,) = details["files"]
    assert file["sha256"] == hashlib.sha256(find_demo_model().read_bytes()).hexdigest()
    assert (details["aliases"], details["abilities"]) == (["prod"], ["generate", "chat"])
    assert details["spec"]["num_layers"] == 30
    assert "<|im_start|>" in details["chat_template"]
    assert [one["digest"] for one in api("GET", "/versions?model=mine")["data"]] == [details["digest"]]
    assert api("GET", "/models/mine")["aliases"] == {"prod": 1}
    launched = api("POST", "/deployments", {"model": "mine:prod", "backend": "null"}, 201)
    assert launched["alias"] == "prod"
    assert api("DELETE", "/aliases/mine/prod", status=409)["error"]["code"] == "conflict"
    api("PATCH", "/deployments/mine", {"model": "mine:1"})
    api("DELETE", "/aliases/mine/prod", status=204)
    (removed, made) = api("GET", "/aliases/mine/prod/history")["data"]
    assert ((removed["from"], removed["to"]), (made["from"], made["to"])) == ((1, None), (None, 1))
    assert "mine:1" in api("GET", "/versions/mine:prod", status=404)["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "path", "missing"),
        ({"path": "relative/path"}, "path", "whole path"),
        ({"path": "/nowhere/at/all"}, None, "/nowhere/at/all"),
        ({"path": "/tmp", "nmae": "x"}, None, "nmae"),
        ({"path": 5}, "path", "str"),
    ],
)
def test_wrong_model_registration_says_what_is_wrong(
    api: Api, body: object, param: str | None, words: str
) -> None:
    error = api("POST", "/models", body, 400)["error"]
    assert words in error["message"]
    assert error["param"] == param


def test_deployment_is_launched_scaled_and_stopped(api: Api) -> None:
    made = api("POST", "/deployments", {"model": "smollm2", "name": "two", "settings": {"seed": "3"}}, 201)
    assert (made["name"], made["model"], made["version"]) == ("two", "smollm2", 1)
    assert (made["desired"], made["replicas"], made["instances"]) == ("running", 1, [])
    assert api("GET", "/deployments/two")["settings"] == {"seed": "3"}
    assert api("PATCH", "/deployments/two", {"replicas": 3})["replicas"] == 3
    assert api("DELETE", "/deployments/two?drain_timeout_s=5")["desired"] == "stopped"
    assert [one["name"] for one in api("GET", "/deployments")["data"]] == ["demo", "two"]
    assert any("launch" in event["reason"] for event in api("GET", "/events?deployment=two")["data"])


def test_deployment_is_updated_and_what_is_null_is_taken_back(api: Api) -> None:
    body = {
        "model": "smollm2",
        "name": "two",
        "backend": "ascend,null",
        "device": "0",
        "settings": {"seed": "3"},
        "priority": -1,
        "fallback": "demo",
    }
    made = api("POST", "/deployments", body, 201)
    assert [made[key] for key in ("backend", "priority", "fallback", "is_asleep")] == [
        "ascend,null",
        -1,
        "demo",
        False,
    ]
    live = api("PATCH", "/deployments/two", {"priority": 2, "settings": {"idle_timeout_s": "60"}})
    assert (live["priority"], live["fallback"], live["generation"]) == (2, "demo", made["generation"])
    changes = {"device": None, "fallback": None, "settings": {"seed": None, "max_num_seqs": "4"}}
    new = api("PATCH", "/deployments/two", changes)
    assert (new["device"], new["fallback"], new["generation"]) == (None, None, made["generation"] + 1)
    assert new["settings"] == {"idle_timeout_s": "60", "max_num_seqs": "4"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"fallback": "demo"}, 400, "leads back"),
        ({"fallback": "nobody"}, 400, "is no deployment"),
        ({"settings": {"max_seq": "1"}}, 400, "max_num_seqs"),
        ({"settings": {"idle_timeout_s": "0"}}, 400, "more than 0"),
        ({"backend": "abacus"}, 400, "installed"),
        ({"model": "smollm2:7"}, 404, "smollm2:1"),
        ({"desired": "stopped"}, 400, "desired"),
    ],
)
def test_wrong_update_is_refused_with_what_would_do(api: Api, body: object, status: int, words: str) -> None:
    assert words in api("PATCH", "/deployments/demo", body, status)["error"]["message"]


def test_deployment_takes_a_path_and_the_models_name(api: Api, site: Site) -> None:
    api("DELETE", "/deployments/demo")
    made = api("POST", "/deployments", {"model": str(find_demo_model()), "backend": "null"}, 201)
    assert made["name"] == made["model"] == "smollm2"


def test_served_model_name_is_the_deployments_name(api: Api, site_client: FlaskClient) -> None:
    settings = {"served_model_name": "gpt-4o"}
    assert api("POST", "/deployments", {"model": "smollm2", "settings": settings}, 201)["name"] == "gpt-4o"
    served = {model["id"] for model in site_client.get("/v1/models").get_json()["data"]}
    assert served == {"demo", "gpt-4o"}
    api("DELETE", "/deployments/gpt-4o")
    both = {"model": "smollm2", "name": "gpt-4o", "settings": settings}
    assert api("POST", "/deployments", both, 201)["name"] == "gpt-4o"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "smollm2", "name": "demo"}, 409, "runs already"),
        ({"model": "nothing"}, 404, "smollm2:1"),
        ({"model": "smollm2:7"}, 404, "smollm2:1"),
        ({"model": "smollm2", "name": "x", "backend": "abacus"}, 400, "installed"),
        ({"model": "smollm2", "name": "x", "replicas": -1}, 400, "replicas"),
        ({"model": "smollm2", "name": "x", "settings": {"max_seq": "1"}}, 400, "max_num_seqs"),
        ({"model": "smollm2", "name": "x", "settings": {"seed": 1}}, 400, "settings"),
        ({"model": "smollm2", "name": "../x"}, 400, "name"),
        (
            {"model": "smollm2", "name": "x", "settings": {"served_model_name": "y"}},
            400,
            "'x' and the setting",
        ),
        ({"model": "smollm2", "name": "x", "settings": {"served_model_name": "y"}}, 400, "is 'y'"),
        ({"model": "smollm2", "settings": {"served_model_name": "a/b"}}, 400, "name 'a/b' is not usable"),
        ({"model": "relative/path"}, 400, "whole path"),
        ({}, 400, "model"),
    ],
)
def test_wrong_launch_is_refused_with_what_would_do(api: Api, body: object, status: int, words: str) -> None:
    error = api("POST", "/deployments", body, status)["error"]
    assert words in error["message"]


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan"])
def test_wrong_drain_time_is_400(api: Api, seconds: str) -> None:
    error = api("DELETE", f"/deployments/demo?drain_timeout_s={seconds}", status=400)["error"]
    assert error["param"] == "drain_timeout_s"


def test_instances_show_the_engines_own_load_and_end(site: Site, api: Api, eventually: Any) -> None:
    engine = site.start_engine()

    def instance() -> Any:
        return api("GET", "/instances?deployment=demo")["data"][0]

    eventually(lambda: instance()["load"] is not None, what="the load is known")
    assert instance()["state"] == "ready"
    assert instance()["plan"] == {"max_model_len": 512}
    engine.kill()
    eventually(lambda: instance()["reason"] == "ended", what="its end is known")


def test_the_prefix_cache_of_a_ready_instance_can_be_reset(site: Site, api: Api) -> None:
    engine = site.start_engine()
    path = f"/instances/{engine.instance}/reset-prefix-cache"
    assert api("POST", path) == {"instance": engine.instance, "forgotten_tokens": 96}
    engine.kill()
    assert api("POST", path, status=503)["error"]["code"] == "engine_lost"


def test_an_engine_that_refuses_to_reset_it_has_not_done_so(site: Site, api: Api) -> None:
    engine = site.start_engine("--refuse", "503")
    error = api("POST", f"/instances/{engine.instance}/reset-prefix-cache", status=503)["error"]
    assert error["message"] == "the queue holds 0 requests; retry later"
    assert all(one["action"] != "instance.reset_prefix_cache" for one in api("GET", "/audit")["data"])


def test_the_prefix_cache_of_an_instance_that_does_not_serve_cannot(site: Site, api: Api) -> None:
    instance = site.add_instance(State.PLACING, State.STARTING)
    assert api("POST", f"/instances/{instance}/reset-prefix-cache", status=409)["error"]["code"] == "conflict"
    assert api("POST", "/instances/none/reset-prefix-cache", status=404)


def test_ended_instances_are_listed_if_asked_for(site: Site, api: Api) -> None:
    site.add_instance(State.PLACING, State.STOPPED)
    assert api("GET", "/instances")["data"] == []
    assert [one["state"] for one in api("GET", "/instances?all=1")["data"]] == ["stopped"]


def test_events_have_from_and_to(site: Site, api: Api) -> None:
    name = site.add_instance(State.PLACING)
    event = api("GET", "/events?limit=1")["data"][0]
    assert (event["instance"], event["from"], event["to"]) == (name, "pending", "placing")
    assert api("GET", "/events?limit=0", status=400)["error"]["param"] == "limit"
    assert api("GET", "/events?limit=x", status=400)["error"]["param"] == "limit"


def test_a_node_has_its_devices_and_what_lives_there(site: Site, api: Api) -> None:
    here, there = (site.add_instance(State.PLACING) for _ in range(2))
    info = DeviceInfo("cuda", 0, "gpu-0", "Example", "sm_90", 2**34, 2**34, frozenset({"bf16"}), host="far")
    with site.database.session() as session:
        save_devices(session, [info])
        session.get_one(Instance, there).host = "far"
    assert api("GET", "/nodes")["data"] == [
        {"host": "", "devices": [], "instances": [here]},
        {"host": "far", "devices": ["gpu-0"], "instances": [there]},
    ]
    assert [(one["uid"], one["host"]) for one in api("GET", "/devices")["data"]] == [("gpu-0", "far")]


def test_devices_are_a_list(api: Api) -> None:
    assert api("GET", "/devices") == {"data": []}


def test_logs_are_the_last_lines_of_an_attempt(site: Site, api: Api) -> None:
    name = site.add_instance(State.PLACING)
    assert api("GET", f"/logs/{name}", status=404)["error"]["code"] == "not_found"
    folder = site.settings.paths.logs / "demo"
    folder.mkdir()
    (folder / f"{name}-1.log").write_text("first\n")
    (folder / f"{name}-2.log").write_text("".join(f"line {n}\n" for n in range(20_000)))
    with site.database.session() as session:
        update_instance(session, name, attempt=2, log_file=str(folder / f"{name}-2.log"))
    assert api.text(f"/logs/{name}?tail=2") == "line 19998\nline 19999\n"
    assert api.text(f"/logs/{name}?tail=0") == ""
    assert api.text(f"/logs/{name}?tail=100000").count("\n") == 20_000
    assert api.text(f"/logs/{name}?attempt=1") == "first\n"
    assert api("GET", f"/logs/{name}?attempt=7", status=404)["error"]["param"] == "attempt"
    assert api("GET", f"/logs/{name}?tail=-1", status=400)["error"]["param"] == "tail"
    assert api("GET", "/logs/..%2f..%2fetc%2fpasswd", status=404)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/models", {"path": "{folder}"}), ("/deployments", {"model": "{folder}", "backend": "null"})],
)
def test_a_model_without_a_tokenizer_is_refused_before_an_engine_starts(
    api: Api, tmp_path: Path, path: str, body: dict[str, str]
) -> None:
    folder = make_tiny_model("llama-tied", tmp_path)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    given = {key: value.format(folder=folder) for key, value in body.items()}
    error = api("POST", path, given, 400)["error"]
    assert error["code"] == "invalid_model_files"
    assert error["message"] == f"{folder} has no tokenizer.json; fetch it from where the model came from"
    assert [model["name"] for model in api("GET", "/models")["data"]] == ["smollm2"]


def test_a_faulty_backend_is_a_reason_in_a_plan(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"model": "smollm2", "backend": "null", "settings": {"max_model_len": "64"}}
    monkeypatch.setattr(NullBackend, "plan", lambda *_: None)
    plan = api("POST", "/plan", wanted)
    assert plan["fits"] is False
    assert plan["reason"] == "backend null is faulty: plan returned None and must return a MemoryPlan"
    monkeypatch.setattr(NullBackend, "check", lambda *_: {}["vram"])
    assert "backend null is faulty: check raised KeyError: 'vram'" in api("POST", "/plan", wanted)["reason"]


def test_plan_tells_what_fits_and_what_would(api: Api) -> None:
    plan = api("POST", "/plan", {"model": "smollm2", "backend": "cpu", "settings": {"max_model_len": "256"}})
    assert (plan["fits"], plan["backend"], plan["max_model_len"]) == (True, "cpu", 256)
    assert {part["name"] for part in plan["parts"]} >= {"weights", "kv"}
    wanted = {"num_gpu_blocks_override": "100000000"}
    refused = api("POST", "/plan", {"model": "smollm2", "backend": "cpu", "settings": wanted})
    assert refused["fits"] is False
    assert "GiB" in refused["reason"]
    assert api("POST", "/plan", {"model": "nothing"}, 404)["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("POST", "/models", {"path": "~no-such-account/model"}, "path"),
        ("POST", "/plan", {"model": "~no-such-account/model"}, "model"),
        ("POST", "/deployments", {"model": "~no-such-account/model"}, "model"),
        ("GET", f"/events?limit={'9' * 5000}", None, "limit"),
        ("GET", "/events?limit=\u0661", None, "limit"),
    ],
)
def test_odd_values_are_refused_by_name(api: Api, method: str, path: str, body: object, param: str) -> None:
    assert api(method, path, body, 400)["error"]["param"] == param
