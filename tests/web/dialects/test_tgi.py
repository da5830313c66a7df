"""TGI's API: token by token, whole with details, failures in its own form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flask.testing import FlaskClient


def generate(client: FlaskClient, path: str = "/generate", **parameters: object) -> Any:
    response = client.post(path, json={"inputs": "hello world", "parameters": parameters})
    assert response.status_code == 200, response.data
    return response.get_json()


def test_answer_is_text_and_details_are_asked_for(client: FlaskClient) -> None:
    assert generate(client, max_new_tokens=3) == {"generated_text": "w0 w1 w2 "}
    full = generate(client, max_new_tokens=1, return_full_text=True)
    assert full == {"generated_text": "hello worldw0 "}
    answer = generate(client, max_new_tokens=3, details=True, decoder_input_details=True, top_n_tokens=2)
    details = answer["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 3)
    assert [token["id"] for token in details["tokens"]] == [100, 101, 102]
    assert all(token["logprob"] == -0.5 and token["special"] is False for token in details["tokens"])
    assert [len(likely) for likely in details["top_tokens"]] == [2, 2, 2]
    assert details["prefill"][0]["logprob"] is None
    assert {token["logprob"] for token in details["prefill"][1:]} == {-1.5}


def test_stop_string_is_told_and_kept(client: FlaskClient) -> None:
    answer = generate(client, max_new_tokens=9, stop=["w2"], details=True)
    assert answer["details"]["finish_reason"] == "stop_sequence"


def test_without_drawing_the_likeliest_token_is_taken_and_the_limit_is_tgis(client: FlaskClient) -> None:
    assert generate(client, details=True)["details"]["generated_tokens"] == 100
    assert generate(client, max_new_tokens=1, seed=7, details=True)["details"]["seed"] is None
    drawn = generate(client, max_new_tokens=1, seed=7, do_sample=True, details=True)
    assert drawn["details"]["seed"] == 7


def test_stream_is_an_event_a_token_and_the_last_has_all(client: FlaskClient) -> None:
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    for path, more in (("/generate_stream", {}), ("/", {"stream": True})):
        response = client.post(path, json={**body, **more})
        assert response.mimetype == "text/event-stream"
        events = [json.loads(line[5:]) for line in response.data.decode().split("\n\n") if line]
        assert [event["token"]["id"] for event in events] == [100, 101, 102]
        assert "".join(event["token"]["text"] for event in events) == "w0 w1 w2 "
        assert [event["generated_text"] for event in events] == [None, None, "w0 w1 w2 "]
        assert events[-1]["details"]["finish_reason"] == "length"
        assert events[0]["details"] is None


def test_address_itself_answers_a_list_of_one(client: FlaskClient) -> None:
    assert generate(client, "/", max_new_tokens=1) == [{"generated_text": "w0 "}]


def test_model_may_be_named_in_the_address(client: FlaskClient) -> None:
    body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
    assert client.post("/?model=demo", json=body).status_code == 200
    response = client.post("/generate?model=nothing", json=body)
    assert (response.status_code, "deployed: demo" in response.get_json()["error"]) == (404, True)


def test_info_is_of_the_one_model_that_is_deployed(client: FlaskClient) -> None:
    info = client.get("/info").get_json()
    assert (info["model_id"], info["max_total_tokens"], info["max_best_of"]) == ("demo", 512, 1)
    assert client.get("/info?model=nothing").status_code == 404


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"best_of": 2}, "parameters.best_of is 2"),
        ({"watermark": True}, "parameters.watermark"),
        ({"typical_p": 0.5}, "parameters.typical_p"),
        ({"max_new_tokens": 0}, "parameters.max_new_tokens is 0; it must be an integer >= 1"),
        ({"top_p": 2}, "parameters.top_p is 2"),
        ({"top_k": -3}, "parameters.top_k is -3"),
        ({"temperature": -1}, "parameters.temperature is -1"),
        ({"repetition_penalty": -1}, "parameters.repetition_penalty is -1"),
        ({"frequency_penalty": 9}, "parameters.frequency_penalty is 9"),
        ({"seed": 2**63}, "parameters.seed is"),
        ({"stop": ["x"] * 65}, "parameters.stop has 65"),
        ({"max_new_tokens": 900}, "parameters.max_new_tokens"),
        ({"grammar": {"type": "ebnf", "value": "x"}}, "parameters.grammar.type is 'ebnf'"),
        ({"top_n_tokens": 21}, "parameters.top_n_tokens is 21"),
        ({"max_new_tokens": "many"}, "parameters.max_new_tokens is wrong"),
    ],
)
def test_failures_have_tgis_form(client: FlaskClient, fields: dict[str, Any], words: str) -> None:
    for path in ("/generate", "/generate_stream", "/"):
        response = client.post(path, json={"inputs": "hello", "parameters": fields})
        body = response.get_json()
        assert (response.status_code, body["error_type"]) == (422, "validation")
        assert words in body["error"]


def test_scores_of_the_prompt_are_no_part_of_a_stream(client: FlaskClient) -> None:
    body = {"inputs": "hello", "parameters": {"decoder_input_details": True}}
    assert client.post("/generate_stream", json=body).status_code == 422
