"""The settings in effect: what they are, where they come from, and what is not told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from trivet.config import load_settings
from trivet_web.app import create_app
from trivet_web.web_process import EXTENSION

Ask = Callable[[], dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "trivet.toml").write_text(
        'hf_endpoint = "https://joe:hunter2@mirror.example"\ndrain_timeout_s = 7\n'
        '[backend.cuda]\nenv = {HF_TOKEN = "a secret"}\n'
    )
    return tmp_path


@pytest.fixture
def app(home: Path) -> Any:
    made: Flask = create_app(load_settings({"home": str(home), "web_threads": 33}, {}))
    yield made
    made.extensions[EXTENSION].close()


@pytest.fixture
def ask(app: Flask) -> Ask:
    token = app.extensions[EXTENSION].token
    headers = {"Authorization": f"Bearer {token}"}
    return lambda: app.test_client().get("/platform/v1/settings", headers=headers).get_json()  # type: ignore[no-any-return]


def test_each_setting_says_where_it_comes_from(ask: Ask) -> None:
    found = {one["name"]: (one["value"], one["source"]) for one in ask()["settings"]}
    assert found["drain_timeout_s"] == ("7.0", "file")
    assert found["web_threads"] == ("33", "given")
    assert found["home"][1] == "given"
    assert found["log_level"] == ("INFO", "default")


def test_secrets_are_left_out(ask: Ask) -> None:
    answer = ask()
    assert "hunter2" not in str(answer)
    assert "a secret" not in str(answer)
    found = {one["name"]: one["value"] for one in answer["settings"]}
    assert found["hf_endpoint"] == "https://...@mirror.example"
    assert "HF_TOKEN" in found["backend"]


def test_a_file_that_the_next_start_would_refuse_is_told(ask: Ask, home: Path) -> None:
    assert ask()["fault"] == ""
    (home / "trivet.toml").write_text("drain_timeout = 7\n")
    answer = ask()
    assert "drain_timeout" in answer["fault"]
    assert {one["name"]: one["source"] for one in answer["settings"]}["drain_timeout_s"] == "given"


def test_packages_have_versions_and_licences(ask: Ask) -> None:
    found = {one["name"].lower(): one for one in ask()["packages"]}
    assert found["flask"]["version"]
    assert "BSD" in found["flask"]["licence"]
