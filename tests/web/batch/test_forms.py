"""From lines to requests, from answers to results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trivet.errors import RequestError
from trivet_web.batch.forms import Answered, BatchForm, SimpleForm
from trivet_web.batch.input_file import InputLine
from trivet_web.batch.online_site import _is_passing

BATCH = BatchForm("m", {"temperature": 0.5, "max_tokens": 9})
SIMPLE = SimpleForm("m", {"temperature": 0.5}, 256)


def line(value: object) -> InputLine:
    data = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return InputLine(3, 7, data)


def batch_line(**changes: object) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}, **changes}


def test_what_a_line_says_goes_before_the_options() -> None:
    body = {"prompt": "x", "model": "other", "temperature": 0, "top_p": None}
    asked = BATCH.request(line(batch_line(body=body)))
    assert asked.url == "/v1/completions"
    assert json.loads(asked.body) == {"prompt": "x", "model": "other", "temperature": 0, "max_tokens": 9}
    asked = SIMPLE.request(line({"prompt": "x", "sampling": {"temperature": 0}}))
    assert json.loads(asked.body) == {"prompt": "x", "model": "m", "temperature": 0, "max_tokens": 256}


def test_sampling_options_are_nothing_to_an_embedding() -> None:
    asked = BATCH.request(line(batch_line(url="/v1/embeddings", body={"input": "x"})))
    assert json.loads(asked.body) == {"input": "x", "model": "m"}


def test_messages_go_to_the_chat_route() -> None:
    messages = [{"role": "user", "content": "x"}]
    asked = SIMPLE.request(line({"messages": messages}))
    assert asked.url == "/v1/chat/completions"
    assert json.loads(asked.body)["messages"] == messages


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (None, r"more than \d+ bytes"),
        (b"{", "no valid JSON"),
        (b"\xff", "no valid JSON"),
        (b'{"prompt": "a", "sampling": {"x": ' + b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe{}", "no valid JSON"),
        ({"prompt": 5}, r"Expected `str \| null`, got `int`"),
        ({"prompt": "a", "messages": []}, "give either 'prompt' or 'messages'"),
        ({}, "give either 'prompt' or 'messages'"),
        ({"promt": "a"}, "unknown field `promt`"),
        ({"prompt": "a", "sampling": {"temprature": 1}}, "sampling has no field 'temprature'"),
        ({"prompt": "a", "sampling": {"n": 2}}, "no field 'n' in a simple line"),
    ],
)
def test_a_simple_line_that_cannot_be_asked_is_named(wrong: object, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        SIMPLE.request(line(wrong))
    fault = json.loads(SIMPLE.fault(line(wrong), caught.value))
    assert fault["id"] == 3
    assert fault["error"].startswith("line 7: ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "GET"}, "method is 'GET'"),
        ({"url": "/v1/images"}, "url is '/v1/images'; it must be one of /v1/chat/completions"),
        ({"body": {"stream": True}}, "not streamed"),
        ({"body": [1]}, "Expected `object`, got `array`"),
        ({"custom_id": 5}, "Expected `str`, got `int`"),
    ],
)
def test_a_batch_line_that_cannot_be_asked_is_named(changes: dict[str, object], words: str) -> None:
    wrong = line(batch_line(**changes))
    with pytest.raises(RequestError, match=words) as caught:
        BATCH.request(wrong)
    fault = json.loads(BATCH.fault(wrong, caught.value))
    assert fault["custom_id"] == ("a" if "custom_id" not in changes else None)
    assert fault["error"]["line"] == 7
    assert fault["response"] is None


def test_an_answer_stands_whole_in_a_batch_result() -> None:
    answered = Answered(404, "req", b'{"error": {"message": "no such model", "code": "model_not_found"}}\n')
    result = BATCH.result(line(batch_line()), answered)
    assert b"\n" not in result
    parsed = json.loads(result)
    assert parsed["id"].startswith("batch_req_")
    assert parsed["custom_id"] == "a"
    assert parsed["response"] == {
        "status_code": 404,
        "request_id": "req",
        "body": {"error": {"message": "no such model", "code": "model_not_found"}},
    }


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (
            200,
            {
                "choices": [{"text": "T", "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 2, "completion_tokens": 1},
            },
            {"text": "T", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 1, "error": None},
        ),
        (
            200,
            {"choices": [{"message": {"content": "M"}, "finish_reason": "length"}]},
            {
                "text": "M",
                "finish_reason": "length",
                "prompt_tokens": 0,
                "completion_tokens": 0,
                "error": None,
            },
        ),
        (
            400,
            {"error": {"message": "bad", "code": "c"}},
            {
                "text": "",
                "finish_reason": "error",
                "prompt_tokens": 0,
                "completion_tokens": 0,
                "error": "bad",
            },
        ),
    ],
)
def test_a_simple_result_has_the_text(status: int, body: object, result: dict[str, object]) -> None:
    answered = Answered(status, "req", json.dumps(body).encode())
    assert json.loads(SIMPLE.result(line({"prompt": "x", "id": "i"}), answered)) == {"id": "i", **result}


@pytest.mark.parametrize(("code", "is_passing"), [("unavailable", True), ("request_ended", False)])
def test_a_line_that_somebody_ended_is_not_asked_again(code: str, is_passing: bool) -> None:
    error = {"message": "m", "type": "server_error", "param": None, "code": code}
    assert _is_passing(Answered(503, "r", json.dumps({"error": error}).encode())) is is_passing
