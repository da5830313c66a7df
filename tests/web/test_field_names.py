"""What an engine refuses is told in the names of the fields that the client sent."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Server, Site
    from flask.testing import FlaskClient

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = "response_format.json_schema.schema"


def refused(server: Server, path: str, **body: object) -> dict[str, Any]:
    """The body of an answer that failed."""
    request = urllib.request.Request(server.url + path, json.dumps({"model": "demo", **body}).encode())
    with pytest.raises(urllib.error.HTTPError) as failed:
        urllib.request.urlopen(request, timeout=20)
    answer: dict[str, Any] = json.loads(failed.value.read())
    return answer


def test_what_an_engine_refuses_later_has_the_names_of_the_client(
    site: Site, start_server: Callable[..., Server]
) -> None:
    """The view has returned by then: the worker goes on with the request when the engine answers."""
    message = f"{SCHEMA} cannot be carried out at its root: Invalid type: 'response_format'"
    options = ("--refuse", "400", "--refuse-code", "invalid_request", "--refuse-message", message)
    site.start_engine(*options, "--refuse-param", SCHEMA)
    server = start_server()

    chat = refused(server, "/v1/chat/completions", messages=HELLO)["error"]
    assert (chat["param"], chat["message"]) == (SCHEMA, message)
    for streams in (False, True):
        response = refused(server, "/v1/responses", input="hello", stream=streams)["error"]
        assert response["param"] == "text.format.schema"
        assert response["message"] == message.replace(SCHEMA, "text.format.schema")
    anthropic = refused(server, "/v1/messages", messages=HELLO, max_tokens=5)["error"]
    assert anthropic["message"] == message.replace(SCHEMA, "output_config.format.schema")
    ollama = refused(server, "/api/chat", messages=HELLO)
    assert ollama["error"] == message.replace(SCHEMA, "format")


def test_a_grammar_of_tgi_is_named_where_it_stands(site: Site, start_server: Callable[..., Server]) -> None:
    message = "structured_outputs.regex cannot be carried out: it has no end"
    site.start_engine("--refuse", "400", "--refuse-code", "invalid_request", "--refuse-message", message)
    told = refused(start_server(), "/generate", inputs="x")
    assert told["error"] == "parameters.grammar.value cannot be carried out: it has no end"


def test_a_name_is_told_once_and_words_of_a_sentence_stay(client: FlaskClient) -> None:
    wrong = client.post("/api/generate", json={"model": "demo", "prompt": "x", "options": {"seed": "5"}})
    assert wrong.get_json()["error"] == "options.seed is wrong: expected int | null, got str"

    body = {"model": "demo", "inputs": "word " * 600, "parameters": {"max_new_tokens": 1}}
    too_long = client.post("/generate", json=body).get_json()["error"]
    assert too_long.startswith("the prompt has 601 tokens and the context holds"), too_long


def test_a_response_that_cannot_fit_names_its_own_field(client: FlaskClient) -> None:
    body = {"model": "demo", "input": "hello", "max_output_tokens": 100_000}
    error = client.post("/v1/responses", json=body).get_json()["error"]
    assert error["param"] == "max_output_tokens"
    assert "max_output_tokens is 100000" in error["message"], error["message"]
    assert "lower max_output_tokens to" in error["message"], error["message"]

    empty = client.post("/v1/responses", json={"model": "demo", "input": []}).get_json()["error"]
    assert empty["message"].startswith("input is empty"), empty
