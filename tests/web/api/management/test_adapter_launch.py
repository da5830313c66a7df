"""Launches with adapters (LoRA): whose folders are confined as those of models, in every way to launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet_registry.keys_store import KeySettings, create_key

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

LAUNCH, PLAN = "/platform/v1/deployments", "/platform/v1/plan"
Ask = Callable[..., Any]


def make_adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def ask(site: Site, site_client: FlaskClient) -> Ask:
    """With the token, or a key."""

    def send(method: str, path: str, body: dict[str, Any], key: str = site.token) -> Any:
        return site_client.open(path, method=method, json=body, headers={"Authorization": f"Bearer {key}"})

    return send


@pytest.fixture
def adapter(site: Site, site_client: FlaskClient, tmp_path: Path) -> Path:
    """In the only folder of models that the site allows."""
    process = site_client.application.extensions["trivet"]
    process.settings = msgspec.structs.replace(process.settings, model_roots=str(tmp_path / "allowed"))
    return make_adapter(tmp_path / "allowed" / "sql")


def every_way(ask: Ask, folder: str) -> dict[str, Any]:
    """Answers to launches and the like that name this folder."""
    settings = {"adapters": f"sql={folder}"}
    body = {"model": "smollm2", "name": "two", "backend": "null", "settings": settings}
    lora_list = [{"lora_name": "sql", "local_path": folder}]
    theirs = {"model_name": "smollm2", "model_uid": "three", "model_engine": "null"}
    return {
        "launch": ask("POST", LAUNCH, body),
        "vllm": ask("POST", LAUNCH, {**body, "name": "four", "settings": {"lora_modules": f"sql={folder}"}}),
        "update": ask("PATCH", f"{LAUNCH}/demo", {"settings": settings}),
        "plan": ask("POST", PLAN, {"model": "smollm2", "backend": "null", "settings": settings}),
        "xinference": ask(
            "POST", "/v1/models?wait_ready=false", {**theirs, "peft_model_config": {"lora_list": lora_list}}
        ),
    }


def test_a_folder_in_the_allowed_ones_is_launched_with(ask: Ask, adapter: Path) -> None:
    answers = every_way(ask, str(adapter))
    assert {way: answer.status_code // 100 for way, answer in answers.items()} == dict.fromkeys(answers, 2)
    assert answers["launch"].get_json()["settings"] == {"adapters": f"sql={adapter}"}
    launched = ask("GET", f"{LAUNCH}/three", {}).get_json()
    assert launched["settings"] == {"adapters": f"sql={adapter}"}


@pytest.mark.parametrize("where", ["outside", "allowed/way-out", "allowed/../outside", "allowed/with-link"])
def test_a_folder_that_is_or_leads_elsewhere_is_refused_as_one_of_a_model_is(
    ask: Ask, adapter: Path, tmp_path: Path, where: str
) -> None:
    outside = make_adapter(tmp_path / "outside")
    (tmp_path / "allowed" / "way-out").symlink_to(outside)
    linked = make_adapter(tmp_path / "allowed" / "with-link")
    (linked / "adapter_model.safetensors").unlink()
    (linked / "adapter_model.safetensors").symlink_to(outside / "adapter_model.safetensors")
    for way, answer in every_way(ask, f"{tmp_path}/{where}").items():
        assert answer.status_code == 403, (way, answer.data)
        assert b"model_roots" in answer.data
    assert ask("GET", f"{LAUNCH}/demo", {}).get_json()["settings"] == {}
    assert ask("GET", f"{LAUNCH}/two", {}).status_code == 404


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("adapters/sql", b"is not absolute; give the whole path"),
        ("~/sql", b"is not absolute; give the whole path"),
        ("/nowhere/at/all", b"/nowhere/at/all"),
    ],
)
def test_a_folder_that_no_engine_could_read_is_refused_at_once(ask: Ask, folder: str, words: bytes) -> None:
    for way, answer in every_way(ask, folder).items():
        assert answer.status_code == 400, (way, answer.data)
        assert words in answer.data


def test_a_folder_whose_name_no_disk_can_have_is_refused(ask: Ask) -> None:
    for way, answer in every_way(ask, "/" + "a" * 300).items():  # and no `model_roots`
        assert answer.status_code == 400, (way, answer.data)
        assert b"cannot be read: File name too long" in answer.data


def test_what_an_adapter_takes_is_told_to_those_only_who_may_launch_it(
    site: Site, ask: Ask, adapter: Path
) -> None:
    with site.database.session() as session:
        _, key = create_key(session, None, KeySettings("k", ("read",)))
    body = {"model": "smollm2", "backend": "null"}
    assert ask("POST", PLAN, body, key).status_code == 200
    for folder in (adapter, adapter.parent / "nothing"):
        response = ask("POST", PLAN, {**body, "settings": {"adapters": f"sql={folder}"}}, key)
        assert response.status_code == 403
        assert "the right to operate" in response.get_json()["error"]["message"]
    assert ask("POST", LAUNCH, {**body, "name": "two"}, key).status_code == 403
