"""Whatever a model says: every dialect answers with JSON, and no server error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Speaker

WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {}, "days": {"type": "integer"}}},
}
TOOL = {"type": "function", "function": WEATHER}
HELLO = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "demo", "messages": HELLO, "tools": [TOOL]},
    "/v1/responses": {"model": "demo", "input": "Hi", "tools": [{"type": "function", **WEATHER}]},
    "/v1/messages": {
        "model": "demo",
        "messages": HELLO,
        "max_tokens": 100,
        "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}],
    },
    "/api/chat": {"model": "demo", "messages": HELLO, "tools": [TOOL]},
}
VALUES = [
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 40,
    "9" * 5000,
    '"\\ud800"',
    '"\\udc00\\ud83d"',
    '{"\\ud800": 1}',
    "[" * 2000 + "]" * 2000,
    '"\\u0000"',
    '"\x00\x1f\x7f"',
    '"\u2028\ufeff"',
    "{",
    "",
]
NAMES = ["weather", "\\ud800", "\\u0000", "", "w" * 5000, 'w"e', "<think>"]


def said() -> Iterable[str]:
    for value in VALUES:
        yield f'<tool_call>{{"name": "weather", "arguments": {{"city": {value}}}}}</tool_call>'
        yield f'<tool_call>{{"arguments": {{"city": {value}}}, "name": "weather"}}</tool_call>'
        written = json.dumps(f'{{"city": {value}}}', ensure_ascii=False)
        yield f'<tool_call>{{"name": "weather", "arguments": {written}}}</tool_call>'
        yield f"<think>{value}</think>{value}"
    for name in NAMES:
        yield f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
    yield '<tool_call>{"name": "weather", "arguments": {"a": 1'
    yield '<tool_call>{"name": "weather", "arguments": null}</tool_call><tool_call>{"name": "weather"}'


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def strictly(text: str | bytes) -> Any:
    """Of an answer, which another language's reader has to read, too."""
    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()  # no half of a surrogate pair
    return value


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_every_answer_is_json(speaker: Speaker, path: str, streams: bool) -> None:
    for text in said():
        response = speaker.post(path, text, **ROUTES[path], stream=streams)
        assert response.status_code == 200, (text, response.data)
        body = response.get_data(as_text=True)
        response.close()
        lines = body.split("\n") if streams else [body]
        parts = [line.removeprefix("data: ") for line in lines if line and not line.startswith("event: ")]
        values = [strictly(part) for part in parts if part != "[DONE]"]
        assert values
        assert not any("error" in value and value["error"] for value in values), (text, body)


BROKEN = '<tool_call>{"name":"weather","arguments":{"a":1'
WHOLE = '<tool_call>{"name":"weather","arguments":{}}</tool_call>'


def told(path: str, values: list[Any]) -> tuple[str, int]:
    """Why the answer ended, and how many calls a client is to carry out."""
    last = values[-1]
    if path == "/v1/chat/completions":
        (choice,) = last["choices"]
        return choice["finish_reason"], 0
    if path == "/v1/messages":
        return last.get("stop_reason") or values[-2]["delta"]["stop_reason"], 0
    response = last.get("response") or last
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert {item["status"] for item in response["output"]} <= {"completed", "incomplete"}
    return response["status"], sum(item["status"] == "completed" for item in calls)


@pytest.mark.parametrize(
    ("says", "expected"),
    [(BROKEN, ("stop", "completed", "end_turn")), (WHOLE + BROKEN, ("tool_calls", "completed", "tool_use"))],
)
@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/api/chat"])
def test_a_call_that_broke_is_none_in_a_stream_either(
    speaker: Speaker, path: str, says: str, expected: tuple[str, ...]
) -> None:
    body = speaker.post(path, says, **ROUTES[path], stream=True).get_data(as_text=True)
    data = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: {")]
    streamed = told(path, [strictly(part) for part in data])
    assert streamed == told(path, [speaker.ask(path, says, **ROUTES[path])])
    assert streamed[0] == expected[list(ROUTES).index(path)]
    if path == "/v1/responses":
        assert streamed[1] == says.count("</tool_call>")
        assert '{\\"a\\":1' in body, "what was told of it"
