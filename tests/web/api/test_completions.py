"""Text completions: prompts in every form, logprobs, streams with several choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

if TYPE_CHECKING:
    from flask.testing import FlaskClient

TEXT = "/v1/completions"


def ask(client: FlaskClient, **fields: object) -> dict[str, Any]:
    response = client.post(TEXT, json={"model": "demo", "max_tokens": 3, **fields})
    assert response.status_code == 200, response.data
    return response.get_json()


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("hello", 1), (["hello"], 1), (["a", "b", "c"], 3), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
)
def test_prompt_forms_give_one_choice_each(client: FlaskClient, prompt: object, count: int) -> None:
    answer = ask(client, prompt=prompt)
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == list(range(count))
    assert {choice["text"] for choice in answer["choices"]} == {"w0 w1 w2 "}
    assert answer["usage"]["completion_tokens"] == 3 * count


def test_token_ids_are_the_prompt_as_they_are(client: FlaskClient) -> None:
    assert ask(client, prompt=[5, 6, 7, 8])["usage"]["prompt_tokens"] == 4


def test_default_is_sixteen_tokens(client: FlaskClient) -> None:
    assert ask(client, prompt="x", max_tokens=None)["usage"]["completion_tokens"] == 16


def test_logprobs_are_parallel_lists_with_offsets_into_the_text(client: FlaskClient) -> None:
    logprobs = ask(client, prompt="x", logprobs=2)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 3
    assert logprobs["text_offset"][0] == 0
    assert logprobs["text_offset"][1] == len(logprobs["tokens"][0])
    assert logprobs["tokens"][0] in logprobs["top_logprobs"][0]


def test_stream_of_several_prompts_names_each_choice(client: FlaskClient) -> None:
    body = {
        "model": "demo",
        "prompt": ["a", "b"],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    lines = client.post(TEXT, json=body).data.decode().split("\n\n")
    assert lines[-2] == "data: [DONE]"
    chunks = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]
    texts = {0: "", 1: ""}
    reasons = []
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert texts == {0: "w0 w1 w2 ", 1: "w0 w1 w2 "}
    assert reasons == ["length", "length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_streamed_offsets_go_on(client: FlaskClient) -> None:
    body = {"model": "demo", "prompt": "x", "max_tokens": 5, "stream": True, "logprobs": 0}
    lines = client.post(TEXT, json=body).data.decode().split("\n\n")[:-2]
    offsets = []
    for line in lines:
        logprobs = msgspec.json.decode(line.removeprefix("data: "))["choices"][0]["logprobs"]
        offsets += logprobs["text_offset"] if logprobs else []
    assert offsets == sorted(set(offsets))
    assert len(offsets) == 5


def test_models_say_what_is_ready(client: FlaskClient) -> None:
    listed = client.get("/v1/models").get_json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["ready"], model["max_model_len"]) == ("demo", True, 512)
    assert client.get("/v1/models/demo").get_json() == model
    assert client.get("/v1/models/other").status_code == 404
