"""Logprobs of a message's text among all that a model drew, and those of /v1/responses over real tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient

from trivet import LLM
from trivet.demo_model import find_demo_model
from trivet.messages import TokenLogprob
from trivet.text.tokenizer import Tokenizer
from trivet_web.api.logprobs import TextLogprobs
from trivet_web.batch.offline_site import OfflineSite
from trivet_web.models.served_models import ServedModel


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    llm = LLM(find_demo_model(), backend="null", max_model_len=384, max_num_seqs=4)
    site = OfflineSite(llm, ["m"], num_threads=2)
    yield site.client()
    site.close()


@pytest.fixture(scope="module")
def tokenizer(served_model: ServedModel) -> Tokenizer:
    return served_model.tokenizer


def entries(tokenizer: Tokenizer, text: str) -> list[TokenLogprob]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [TokenLogprob(token_id, -float(place), 1, []) for place, token_id in enumerate(ids)]


def test_thinking_before_and_a_call_after_have_no_part(tokenizer: Tokenizer) -> None:
    thought, said, call = "<think>Paris? Hm.</think>", "\n\nParis is sunny.", "<tool_call>{}</tool_call>"
    logprobs = TextLogprobs(tokenizer, 0)
    for text in (thought, said, call):
        logprobs.add(entries(tokenizer, text))
    assert "".join(one.token for one in logprobs.take("Paris is sunny.")) == "Paris is sunny."


def test_every_token_is_told_once_however_its_text_is_cut(tokenizer: Tokenizer) -> None:
    text = "東京は晴れ, 21 degrees."
    for cut in range(1, len(text)):
        logprobs = TextLogprobs(tokenizer, 0)
        logprobs.add(entries(tokenizer, text))
        told = logprobs.take(text[:cut]) + logprobs.take(text[cut:])
        assert [-one.logprob for one in told] == [*range(len(told))]
        assert b"".join(bytes(one.bytes) for one in told) == text.encode()


ASK: dict[str, Any] = {
    "model": "m",
    "input": "hello",
    "max_output_tokens": 12,
    "temperature": 0,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
}


def test_a_response_has_them_whole_and_streamed(client: FlaskClient) -> None:
    answer = client.post("/v1/responses", json=ASK).get_json()
    (part,) = answer["output"][0]["content"]
    assert answer["top_logprobs"] == 2
    assert b"".join(bytes(one["bytes"]) for one in part["logprobs"]) == part["text"].encode()
    assert {len(one["top_logprobs"]) for one in part["logprobs"]} == {2}
    data = client.post("/v1/responses", json={**ASK, "stream": True}).data.decode()
    events = [msgspec.json.decode(block.split("data: ")[1]) for block in data.strip().split("\n\n")]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    streamed = [one["token"] for event in deltas for one in event["logprobs"]]
    assert streamed == [one["token"] for one in part["logprobs"]]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert [one["token"] for one in done["logprobs"]] == streamed


def test_a_response_that_did_not_ask_for_them_has_none(client: FlaskClient) -> None:
    asked = {name: value for name, value in ASK.items() if name not in ("include", "top_logprobs")}
    (part,) = client.post("/v1/responses", json=asked).get_json()["output"][0]["content"]
    assert part["logprobs"] == []
