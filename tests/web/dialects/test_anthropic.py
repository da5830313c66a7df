"""Anthropic's messages: objects, events in their order, tools, thinking, failures in its own form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet.structured_outputs import MAX_JSON_BYTES
from trivet_web.dialects.anthropic.request import MessageRequest

if TYPE_CHECKING:
    from conftest import Speaker

MESSAGES = "/v1/messages"
HELLO: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "hello"}],
}
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = 'I look.<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def events_of(data: bytes) -> list[dict[str, Any]]:
    events = []
    for block in data.decode().strip().split("\n\n"):
        name, _, text = block.partition("\n")
        event = json.loads(text.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def test_whole_answer_is_a_message(speaker: Speaker) -> None:
    answer = speaker.ask(MESSAGES, "Hi there", **HELLO)
    assert answer["id"].startswith("msg")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "demo")
    assert answer["content"] == [{"type": "text", "text": "Hi there"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["output_tokens"] == 3  # the fake engine makes three characters a token
    assert answer["usage"]["input_tokens"] > 0


def test_limit_and_stop_sequence_are_told_apart(client: Any) -> None:
    short = client.post(MESSAGES, json={**HELLO, "max_tokens": 2}).get_json()
    assert short["stop_reason"] == "max_tokens"
    stopped = client.post(MESSAGES, json={**HELLO, "stop_sequences": ["w2"]}).get_json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "w2")


def test_events_come_in_the_documented_order(speaker: Speaker) -> None:
    response = speaker.post(
        MESSAGES, "<think>\nhm\n</think>\n\n" + CALL, stream=True, **THINKS, **HELLO, tools=[WEATHER]
    )
    assert response.mimetype == "text/event-stream"
    events = events_of(response.data)
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    open_index, blocks = None, []
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_index is None
            open_index = event["index"]
            assert open_index == len(blocks)
            blocks.append([event["content_block"]["type"], ""])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_index
            (text,) = [value for name, value in event["delta"].items() if name != "type"]
            blocks[-1][1] += text
        else:
            assert event == {"type": "content_block_stop", "index": open_index}
            open_index = None
    assert open_index is None
    assert [kind for kind, _ in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[0][1].strip() == "hm"
    assert blocks[1][1] == "I look."
    assert json.loads(blocks[2][1]) == {"city": "Paris"}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] > 0


def test_calls_are_blocks_with_their_input(speaker: Speaker) -> None:
    answer = speaker.ask(MESSAGES, CALL, **HELLO, tools=[WEATHER])
    text, call = answer["content"]
    assert text == {"type": "text", "text": "I look."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Paris"})
    assert call["id"]
    assert answer["stop_reason"] == "tool_use"


def test_results_of_tools_and_system_blocks_are_read(speaker: Speaker) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "so?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be brief."}]
    body = {**HELLO, "messages": turns, "system": system, "tools": [WEATHER]}
    long = speaker.ask(MESSAGES, "Umbrella.", **body)["usage"]["input_tokens"]
    short = speaker.ask(MESSAGES, "Umbrella.", **{**body, "system": "Be."})["usage"]["input_tokens"]
    assert long > short > 20


def test_prompt_is_counted_as_it_is_computed(speaker: Speaker) -> None:
    counted = speaker.ask("/v1/messages/count_tokens", "", model="demo", messages=HELLO["messages"])
    assert counted["input_tokens"] == speaker.ask(MESSAGES, "Hi", **HELLO)["usage"]["input_tokens"]


def test_last_turn_of_the_assistant_is_gone_on_with(speaker: Speaker) -> None:
    begun = [*HELLO["messages"], {"role": "assistant", "content": "The answer is ("}]
    closed = [*begun, {"role": "user", "content": ""}]
    counts = [
        speaker.ask("/v1/messages/count_tokens", "", model="demo", messages=turns)["input_tokens"]
        for turns in (begun, closed)
    ]
    assert counts[1] - counts[0] > 4, "no end of the turn and no header after it"


def test_thinking_is_a_block_and_asked_for_by_name(speaker: Speaker, plain: Speaker) -> None:
    answer = speaker.ask(MESSAGES, "<think>\nhm\n</think>\n\nYes", **HELLO, **THINKS)
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert answer["content"][0]["signature"] == ""
    refused = plain.post(MESSAGES, "Yes", **HELLO, **THINKS)
    assert refused.status_code == 400
    assert "does not think" in refused.get_json()["error"]["message"]


def test_the_model_is_told_that_a_tool_failed() -> None:
    told = []
    for more in ({}, {"is_error": False}, {"is_error": True}):
        block = {"type": "tool_result", "tool_use_id": "t1", "content": "no such city", **more}
        body = msgspec.convert({**HELLO, "messages": [{"role": "user", "content": [block]}]}, MessageRequest)
        (message,) = body.chat().messages
        told.append(message.content)
    assert told == ["no such city", "no such city", "Error: no such city"]


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"model": "nothing"}, 404, "not_found_error", "nothing"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"stop_sequences": ["x"] * 65}, 400, "invalid_request_error", "stop_sequences has 65"),
        ({"container": "c"}, 400, "invalid_request_error", "container"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
            "image",
        ),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            400,
            "invalid_request_error",
            "bash_20250124",
        ),
        ({"tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "'x'"),
        ({"messages": [{"role": "user", "content": "word " * 900}]}, 400, "invalid_request_error", "512"),
    ],
)
def test_failures_have_anthropics_form(
    speaker: Speaker, fields: dict[str, Any], status: int, kind: str, words: str
) -> None:
    response = speaker.post(MESSAGES, "", **{**HELLO, **fields})
    body = response.get_json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert words in body["error"]["message"]
    assert body["request_id"] == response.headers["Request-Id"]


OBJECT = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
WRONG = {"type": "json_schema", "schema": {"description": "x" * (MAX_JSON_BYTES + 1)}}


def test_the_form_is_asked_for_by_either_of_its_names() -> None:
    for fields in (
        {"output_format": OBJECT},
        {"output_config": {"format": OBJECT}},
        {"output_format": OBJECT, "output_config": {"format": OBJECT}},
    ):
        body = msgspec.convert({**HELLO, **fields}, MessageRequest)
        form = body.completion().sampling_params({}, None, None).structured_outputs
        assert form is not None
        assert json.loads(str(form.json)) == OBJECT["schema"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"output_format": WRONG}, "output_format.schema"),
        ({"output_config": {"format": WRONG}}, "output_config.format.schema"),
        ({"output_format": OBJECT, "output_config": {"format": WRONG}}, "output_config.format differ"),
    ],
)
def test_a_wrong_form_is_named_as_it_was_sent(speaker: Speaker, fields: dict[str, Any], words: str) -> None:
    response = speaker.post(MESSAGES, "", **{**HELLO, **fields})
    assert response.status_code == 400
    assert words in response.get_json()["error"]["message"]


def test_its_key_header_is_a_token(speaker: Speaker) -> None:
    for key, status in (("wrong", 401), (speaker.token, 200)):
        response = speaker.client.get("/platform/v1/status", headers={"X-Api-Key": key})
        assert response.status_code == status
