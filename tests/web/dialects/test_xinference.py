"""Xinference's API beside OpenAI's: one answer for both, launching, ending, registering."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from trivet.demo_model import find_demo_model
from trivet_registry.deployments_store import get_deployment
from trivet_registry.instance_state import InstanceState as State

if TYPE_CHECKING:
    from conftest import Site, Speaker
    from flask.testing import FlaskClient

LAUNCH = {"model_uid": "x", "model_name": "smollm2", "model_engine": "null", "model_type": "LLM"}
LATER = "/v1/models?wait_ready=False"


def test_one_object_serves_both_kinds_of_clients(client: FlaskClient) -> None:
    (listed,) = client.get("/v1/models").get_json()["data"]
    assert (listed["id"], listed["object"], listed["owned_by"]) == ("demo", "model", "trivet")
    assert (listed["model_type"], listed["model_name"], listed["model_format"]) == ("LLM", "smollm2", "gguf")
    assert {"chat", "generate"} <= set(listed["model_ability"])
    assert client.get("/v1/models/demo").get_json() == listed


def test_anthropics_clients_read_the_same_list(client: FlaskClient) -> None:
    page = client.get("/v1/models?limit=1", headers={"anthropic-version": "2023-06-01"}).get_json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("demo", "demo", False)
    (listed,) = page["data"]
    assert (listed["type"], listed["display_name"]) == ("model", "demo")
    made = datetime.fromisoformat(listed["created_at"])
    assert made.timestamp() == listed["created"]


def test_message_of_a_failure_is_where_either_looks(client: FlaskClient) -> None:
    for path, body in (("/v1/rerank", {"model": "demo"}), ("/v1/chat/completions", {}), ("/v1/models", {})):
        failed = client.post(path, json=body).get_json()
        assert failed["detail"] == failed["error"]["message"]


def test_launching_and_ending_need_the_token(client: FlaskClient) -> None:
    assert client.get("/v1/cluster/auth").get_json() == {"auth": True}
    assert client.post("/v1/models", json=LAUNCH).status_code == 401
    assert client.delete("/v1/models/demo").status_code == 401
    assert client.post("/v1/model_registrations/LLM", json={"model": "{}"}).status_code == 401
    assert client.delete("/v1/model_registrations/LLM/smollm2").status_code == 401


def test_launch_is_a_deployment_and_its_end(speaker: Speaker) -> None:
    body = {**LAUNCH, "model_type": "embedding", "replica": 2, "max_model_len": 256, "model_format": "ggufv2"}
    assert speaker.manage("POST", LATER, **body).get_json() == {"model_uid": "x"}
    made = speaker.manage("GET", "/platform/v1/deployments/x").get_json()
    assert (made["backend"], made["replicas"]) == ("null", 2)
    assert made["settings"] == {"max_model_len": "256", "task": "embed"}
    described = speaker.client.get("/v1/models/x").get_json()
    assert (described["model_type"], described["model_ability"]) == ("embedding", ["embed"])
    assert speaker.manage("POST", LATER, **body).status_code == 409
    assert speaker.manage("DELETE", "/v1/models/x").status_code == 200
    assert speaker.client.get("/v1/models/x").status_code == 404


def test_who_waits_for_a_model_takes_a_slot(speaker: Speaker) -> None:
    """Else a few of them hold all threads, with those that health is asked on."""
    slots = speaker.client.application.extensions["trivet"].slots
    taken = [slots.take() for _ in range(slots._count)]
    try:
        body = {**LAUNCH, "model_uid": "slow"}
        assert speaker.manage("POST", "/v1/models", **body).status_code == 429
        assert speaker.manage("GET", "/platform/v1/deployments/slow").status_code == 404
        assert speaker.manage("POST", LATER, **body).status_code == 200
        assert speaker.manage("DELETE", "/v1/models/slow").status_code == 200, "without a wait"
        taken.pop()()
        assert speaker.manage("POST", LATER, **{**body, "model_uid": "fast"}).status_code == 200
        assert speaker.manage("DELETE", "/v1/models/fast").status_code == 200
        assert slots._num_taken == len(taken), "it was given back"
    finally:
        for give_back in taken:
            give_back()


def test_launch_that_fails_says_why(site: Site, site_client: FlaskClient) -> None:
    headers = {"Authorization": f"Bearer {site.token}"}
    site.deploy("other")
    site.add_instance(State.PLACING, State.FAILED, name="other", reason="exit code 9: of before")
    thread = threading.Thread(target=_fail_anew, args=(site,))
    thread.start()
    response = site_client.post("/v1/models", json={**LAUNCH, "model_uid": "other"}, headers=headers)
    thread.join()
    assert response.status_code == 503
    assert "exit code 1: no space left" in response.get_json()["detail"]


def _fail_anew(site: Site) -> None:
    """What a supervisor makes of a launch on a full disk, once there is one."""
    deadline_s = time.monotonic() + 60
    is_launched = False
    while not is_launched:
        assert time.monotonic() < deadline_s, "it is not launched anew"
        time.sleep(0.02)
        with site.database.reading() as session:
            is_launched = get_deployment(session, "other").generation > 1
    site.add_instance(State.PLACING, State.FAILED, name="other", reason="exit code 1: no space left")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model_name": "nothing"}, 404, "smollm2"),
        ({"quantization": "Int4"}, 404, "q4_1"),
        ({"model_format": "pytorch"}, 404, "gguf"),
        ({"model_engine": "nothing"}, 400, "nothing"),
        ({"model_type": "image"}, 400, "model_type is 'image'"),
        ({"peft_model_config": {"image_lora_load_kwargs": {"a": 1}}}, 400, "peft_model_config"),
        ({"max_modle_len": 5}, 400, "max_model_len"),
        ({"n_worker": 2}, 400, "n_worker"),
        ({"gpu_idx": [0, 1]}, 400, "n_gpu"),
    ],
)
def test_launch_that_cannot_be_is_refused_by_name(
    speaker: Speaker, fields: dict[str, Any], status: int, words: str
) -> None:
    response = speaker.manage("POST", LATER, **{**LAUNCH, **fields})
    assert response.status_code == status
    assert words in response.get_json()["detail"]


def test_files_are_registered_listed_and_forgotten(speaker: Speaker) -> None:
    place = "/v1/model_registrations/LLM"
    model = {"model_name": "own", "model_specs": [{"model_uri": f"file://{find_demo_model()}"}]}
    assert speaker.manage("POST", place, model=json.dumps(model)).status_code == 200
    assert {"model_name": "own", "is_builtin": False} in speaker.client.get(place).get_json()
    described = speaker.client.get(f"{place}/own").get_json()
    assert described["model_specs"][0]["model_format"] == "gguf"
    assert speaker.manage("DELETE", f"{place}/own").status_code == 200
    assert speaker.client.get(f"{place}/own").status_code == 404
    model["model_specs"] = [{"model_uri": "https://example.com/x"}]
    refused = speaker.manage("POST", place, model=json.dumps(model))
    assert (refused.status_code, "downloads nothing" in refused.get_json()["detail"]) == (400, True)
