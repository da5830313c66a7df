"""/openapi.json describes every route, and what the server answers is what it says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from trivet_web.api.documented import operation_of
from trivet_web.api.openapi import document_of, routes_of

if TYPE_CHECKING:
    from flask.testing import FlaskClient

HELLO = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def document(client: FlaskClient) -> dict[str, Any]:
    response = client.get("/openapi.json")
    assert response.status_code == 200
    return response.get_json()


def test_every_route_is_documented_with_its_summary(client: FlaskClient, document: dict[str, Any]) -> None:
    missing = []
    for rule, method, view in routes_of(client.application):
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        described = document["paths"].get(path, {}).get(method.lower())
        if operation_of(view) is None or not described or not view.__doc__:
            missing.append(f"{method} {rule.rule}")
    assert not missing, "put @documented(...) at the view"


def test_references_and_ids_are_sound(document: dict[str, Any]) -> None:
    text = str(document)
    names = set(re.findall(r"#/components/schemas/([\w.]+)", text))
    assert names
    assert names <= set(document["components"]["schemas"])
    ids = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids))


def test_a_schema_is_what_decodes_the_request(document: dict[str, Any]) -> None:
    chat = document["components"]["schemas"]["ChatRequest"]
    assert {"messages", "tools", "truncate_prompt_tokens"} <= set(chat["properties"])
    assert set(chat["required"]) == {"model", "messages"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/v1/chat/completions", {**HELLO, "logprobs": True, "top_logprobs": 1}),
        ("post", "/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 2, "logprobs": 1}),
        ("post", "/v1/responses", {"model": "demo", "input": "a", "max_output_tokens": 2}),
        ("post", "/tokenize", {"prompt": "a"}),
        ("post", "/detokenize", {"tokens": [1]}),
        ("get", "/v1/models", None),
        ("get", "/version", None),
        ("get", "/health/ready", None),
        ("post", "/v1/chat/completions", {"model": "none", "messages": HELLO["messages"]}),
    ],
)
def test_answers_are_what_the_document_says(
    client: FlaskClient, document: dict[str, Any], method: str, path: str, body: Any
) -> None:
    response = getattr(client, method)(path, **({} if body is None else {"json": body}))
    described = document["paths"][path][method]["responses"]
    key = "200" if response.status_code == 200 else f"{response.status_code // 100}XX"
    schema = described[key]["content"]["application/json"]["schema"]
    jsonschema.validate(response.get_json(), {**schema, "components": document["components"]})
    if body is not None and response.status_code == 200:
        asked = document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(body, {**asked, "components": document["components"]})


def test_an_item_of_a_stream_is_an_event_or_a_line(document: dict[str, Any]) -> None:
    def item(path: str, kind: str) -> dict[str, Any]:
        return document["paths"][path]["post"]["responses"]["200"]["content"][kind]["itemSchema"]

    data = item("/v1/chat/completions", "text/event-stream")["properties"]["data"]
    assert data["contentSchema"] == {"$ref": "#/components/schemas/ChatChunk"}
    assert "data" not in str(item("/api/chat", "application/x-ndjson"))


def test_a_route_without_a_document_is_seen(client: FlaskClient) -> None:
    def undocumented() -> str:
        return ""

    assert operation_of(undocumented) is None
    assert document_of(client.application)["paths"]
