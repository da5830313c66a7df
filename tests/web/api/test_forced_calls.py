"""Calls that are required of a real model: SmolLM2, which was never trained to make any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from trivet import LLM
from trivet.demo_model import find_demo_model
from trivet_web.batch.forms import Request
from trivet_web.batch.offline_site import OfflineSite

CITY = {"type": "string", "enum": ["Paris", "Berlin", "Rome"]}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": CITY},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Forecast", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
ASK: dict[str, Any] = {
    "model": "smol",
    "messages": [{"role": "user", "content": "What will the weather be in Paris for three days?"}],
    "tools": TOOLS,
    "temperature": 0,
    "max_tokens": 120,
}
Post = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    llm = LLM(find_demo_model(), backend="cpu", max_model_len=1024, max_num_seqs=2)
    site = OfflineSite(llm, ["smol"], num_threads=2)

    def send(**fields: object) -> tuple[int, dict[str, Any]]:
        answered = site.answer(Request("/v1/chat/completions", json.dumps({**ASK, **fields}).encode()))
        return answered.status, json.loads(answered.body)

    yield send
    site.close()


def calls_of(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls", answer
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in choice["message"]["tool_calls"]
    ]


def test_a_named_tools_arguments_keep_to_its_schema(post: Post) -> None:
    status, answer = post(tool_choice={"type": "function", "function": {"name": "weather"}})
    assert status == 200, answer
    ((name, arguments),) = calls_of(answer)
    assert name == "weather"
    jsonschema.validate(arguments, WEATHER)


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_keep_to_their_schemas(post: Post, parallel: bool) -> None:
    status, answer = post(tool_choice="required", parallel_tool_calls=parallel, max_tokens=400)
    assert status == 200, answer
    calls = calls_of(answer)
    assert parallel or len(calls) == 1
    for name, arguments in calls:
        jsonschema.validate(arguments, WEATHER if name == "weather" else {"const": {}})


def test_a_call_that_its_tokens_do_not_suffice_for_is_content(post: Post) -> None:
    status, answer = post(tool_choice="required", max_tokens=3)
    assert status == 200
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("length", False)


def test_a_schema_that_cannot_be_carried_out_is_told_by_its_place(post: Post) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "no such type"}}}]
    status, answer = post(tools=tools, tool_choice="required")
    assert (status, answer["error"]["param"]) == (400, "tools")


def test_an_answer_beside_tools_keeps_to_its_form_or_is_a_call(post: Post) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 20}},
        "required": ["answer"],
    }
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    status, answer = post(response_format=asked, max_tokens=100)
    assert status == 200, answer
    (choice,) = answer["choices"]
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    else:
        message = choice["message"]
        assert message.get("tool_calls") or message["content"].startswith("<tool_call>"), choice


def test_the_tools_of_an_automatic_choice_are_read_by_the_model(post: Post) -> None:
    status, answer = post(max_tokens=40)
    assert status == 200
    assert answer["usage"]["prompt_tokens"] > 150
