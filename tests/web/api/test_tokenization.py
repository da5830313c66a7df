"""Tokens of texts and chats, and back; no engine is needed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from trivet_web.web_process import EXTENSION

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

TEXT = "The capital of France 東京"
MESSAGES = [{"role": "user", "content": "hello"}]


def post(client: FlaskClient, path: str, **fields: object) -> Any:
    response = client.post(path, json=fields)
    assert response.status_code == 200, response.data
    return response.get_json()


def test_text_becomes_tokens_and_text_again(site_client: FlaskClient) -> None:
    answer = post(site_client, "/tokenize", prompt=TEXT, return_token_strs=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 8192
    assert post(site_client, "/detokenize", tokens=answer["tokens"]) == {"prompt": TEXT}
    assert post(site_client, "/tokenize", prompt=TEXT)["token_strs"] is None


def test_a_chat_has_the_tokens_that_its_completion_counts(client: FlaskClient) -> None:
    for fields in (
        {},
        {"add_generation_prompt": False},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ):
        asked = post(client, "/tokenize", model="demo", messages=MESSAGES, **fields)
        chat = post(client, "/v1/chat/completions", model="demo", messages=MESSAGES, max_tokens=1, **fields)
        assert asked["count"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "wizard"}]}, "messages[0].role"),
        ("/detokenize", {"tokens": [10**6]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(client: FlaskClient, path: str, fields: dict[str, Any], param: str) -> None:
    response = client.post(path, json=fields)
    assert (response.status_code, response.get_json()["error"]["param"]) == (400, param)


def test_clients_that_tokenise_here_are_told_the_marks(client: FlaskClient) -> None:
    info = client.get("/tokenizer_info?model=demo").get_json()
    assert info == {**info, "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    assert "<|im_start|>" in info["chat_template"]
    assert client.get("/tokenizer_info?model=none").status_code == 404


def test_the_model_is_named_where_there_are_several(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": "a"}
    site.deploy("other")
    assert site_client.post("/tokenize", json=body).status_code == 200, "they are of one model"
    assert site_client.post("/tokenize", json={**body, "model": "none"}).status_code == 404
    router = site_client.application.extensions[EXTENSION].router
    demo, other = (router.deployed(name) for name in ("demo", "other"))
    elsewhere = dataclasses.replace(other, model_path="/models/other")
    monkeypatch.setattr(router, "table", lambda: {"demo": demo, "other": elsewhere})
    error = site_client.post("/tokenize", json=body).get_json()["error"]
    assert (error["param"], "demo, other" in error["message"]) == ("model", True)
    assert site_client.get("/tokenizer_info").status_code == 400
