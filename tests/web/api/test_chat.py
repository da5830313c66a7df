"""Chat completions: the objects that OpenAI clients expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet_registry.instance_state import InstanceState as State

if TYPE_CHECKING:
    from conftest import Site
from flask.testing import FlaskClient

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def ask(client: FlaskClient, **fields: object) -> dict[str, Any]:
    response = client.post(CHAT, json={**HELLO, **fields})
    assert response.status_code == 200, response.data
    return response.get_json()


def events(client: FlaskClient, **fields: object) -> list[dict[str, Any]]:
    """The chunks of a stream that ended well."""
    response = client.post(CHAT, json={**HELLO, "stream": True, **fields})
    assert response.status_code == 200, response.data
    assert response.mimetype == "text/event-stream"
    lines = response.data.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]


def test_whole_answer_has_text_reason_and_usage(client: FlaskClient) -> None:
    answer = ask(client)
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"content": "w0 w1 w2 w3 ", "role": "assistant", "refusal": None}
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4


def test_stream_begins_with_the_role_and_ends_with_the_reason(client: FlaskClient) -> None:
    chunks = events(client)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "w0 w1 w2 w3 "
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_if_asked_for_is_in_exactly_one_last_chunk(client: FlaskClient) -> None:
    *chunks, last = events(client, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4


def test_usage_if_asked_for_with_every_chunk_is_that_of_the_text_so_far(
    site: Site, site_client: FlaskClient
) -> None:
    site.start_engine("--step-s", "0.02")
    client, text, num_with_text = site_client, "", 0
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = events(client, stream_options=options, max_tokens=20)
    for chunk in chunks:
        text += chunk["choices"][0]["delta"].get("content", "")
        if text:
            assert chunk["usage"]["completion_tokens"] == len(text.split())
            num_with_text += 1
    assert num_with_text > 3, "there are some between the first and the last"
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}
    assert chunks[-1]["usage"] == last["usage"]
    assert all("usage" not in c for c in events(client, stream_options={"continuous_usage_stats": True}))


@pytest.mark.parametrize(
    "name", ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/responses/input_tokens", "/tokenize"])
def test_variables_of_the_template_that_are_fields_are_refused_by_name(
    client: FlaskClient, path: str, name: str
) -> None:
    said = HELLO["messages"]
    text = {"input": said} if "responses" in path else {"messages": said}
    body = {"model": "demo", **text, "chat_template_kwargs": {name: False}}
    response = client.post(path, json=body)
    assert response.status_code == 400, response.data
    error = response.get_json()["error"]
    assert error["param"] == "chat_template_kwargs"
    assert f"must not set {name};" in error["message"]


@pytest.mark.parametrize("arguments", ["[" * 3000, '{"a": ' * 3000, '{"a": "\\ud800"}'])
def test_arguments_of_an_earlier_call_that_are_no_use_as_json_stay_text(
    client: FlaskClient, arguments: str
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    answered = {"role": "tool", "tool_call_id": "call_1", "content": "y"}
    body = {"model": "demo", "messages": [*said, answered], "max_tokens": 2}
    assert client.post(CHAT, json=body).status_code in (200, 400)


def test_max_completion_tokens_goes_before_max_tokens(client: FlaskClient) -> None:
    answer = ask(client, max_completion_tokens=2)
    assert answer["usage"]["completion_tokens"] == 2


def test_without_max_tokens_the_engine_decides(client: FlaskClient) -> None:
    assert ask(client, max_tokens=None)["usage"]["completion_tokens"] == 64  # the fake engine's own limit


def test_stop_string_ends_the_answer_and_is_named(client: FlaskClient) -> None:
    for stop in ("w2", ["nothing", "w2"]):
        choice = ask(client, stop=stop, max_tokens=50)["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "w2")
        assert choice["message"]["content"] == "w0 w1 "


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_are_the_same_prompt_as_one_string(client: FlaskClient, role: str) -> None:
    parts = [{"type": "text", "text": "You are "}, {"type": "text", "text": "brief."}]

    def num_tokens(content: object) -> int:
        messages = [{"role": role, "content": content}, *HELLO["messages"]]
        return int(ask(client, messages=messages)["usage"]["prompt_tokens"])

    assert num_tokens(parts) == num_tokens("You are brief.") > num_tokens(parts[:1])


def test_messages_without_content_are_rendered(client: FlaskClient) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ask(
        client,
        messages=[
            {"role": "system", "content": "a"},
            {"role": "developer", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": None, "tool_call_id": "1"},
        ],
    )


def test_logprobs_are_one_entry_a_token_streamed_and_not(client: FlaskClient) -> None:
    whole = ask(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(whole) == 4
    first = whole[0]
    assert first["logprob"] == -0.5
    assert bytes(first["bytes"]).decode() == first["token"]
    assert [entry["logprob"] for entry in first["top_logprobs"]] == [-0.5, -1.5]
    chunks = events(client, logprobs=True, top_logprobs=2)
    streamed = [
        entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", ())
    ]
    assert streamed == whole
    assert ask(client, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert ask(client)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_longer_than_the_context_is_refused_with_both_numbers(
    client: FlaskClient, stream: bool
) -> None:
    messages = [{"role": "user", "content": "word " * 600}]
    response = client.post(CHAT, json={**HELLO, "messages": messages, "stream": stream})
    error = response.get_json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == "messages"
    assert "512" in error["message"]
    assert any(int(word) > 600 for word in error["message"].split() if word.isdigit())
    assert ask(client)["choices"][0]["finish_reason"], "the next request works"


def test_completion_that_does_not_fit_is_refused_with_what_would(client: FlaskClient) -> None:
    response = client.post(CHAT, json={**HELLO, "max_tokens": 500})
    error = response.get_json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    largest = int(error["message"].split("lower max_tokens to ")[1].split()[0])
    assert client.post(CHAT, json={**HELLO, "max_tokens": largest + 1}).status_code == 400
    assert client.post(CHAT, json={**HELLO, "max_tokens": largest, "stop": "w2"}).status_code == 200


def test_unknown_model_is_404_that_lists_what_exists(client: FlaskClient) -> None:
    response = client.post(CHAT, json={**HELLO, "model": "nothing"})
    error = response.get_json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "demo" in error["message"]


def test_model_that_is_not_ready_is_503_with_state_and_reason(site: Site, site_client: FlaskClient) -> None:
    response = site_client.post(CHAT, json=HELLO)
    assert response.status_code == 503
    assert "no instance" in response.get_json()["error"]["message"]
    site.add_instance(State.PLACING, State.FAILED, reason="exit code 1: no space left")
    response = site_client.post(CHAT, json=HELLO)
    assert response.status_code == 503
    assert "failed: exit code 1: no space left" in response.get_json()["error"]["message"]


def test_full_engine_is_429_with_its_words(site: Site, site_client: FlaskClient) -> None:
    site.start_engine("--refuse", "429")
    response = site_client.post(CHAT, json={**HELLO, "stream": True})
    error = response.get_json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (429, "overloaded", "rate_limit_error")
    assert "the queue holds 0 requests" in error["message"]


def test_full_engine_is_passed_over_for_another_replica(site: Site, site_client: FlaskClient) -> None:
    site.start_engine("--refuse", "429")
    site.start_engine()
    for _ in range(6):
        assert site_client.post(CHAT, json=HELLO).status_code == 200


def test_equal_load_is_balanced_over_replicas(site: Site, site_client: FlaskClient) -> None:
    engines = [site.start_engine(), site.start_engine()]
    for _ in range(40):
        assert site_client.post(CHAT, json=HELLO).status_code == 200
    page = site_client.get("/metrics").data.decode()
    count = "trivet:e2e_request_latency_seconds_count"
    served = [
        float(line.rsplit(" ", 1)[1])
        for engine in engines
        for line in page.splitlines()
        if line.startswith(count) and engine.instance in line
    ]
    assert sum(served) == 40
    assert max(served) - min(served) <= 4


def test_n_answers_have_an_index_each_and_the_prompt_counts_once(client: FlaskClient) -> None:
    one, three = ask(client), ask(client, n=3)
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in three["choices"]} == {"w0 w1 w2 w3 "}
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 12


def test_n_streamed_answers_have_a_role_a_text_and_a_reason_each(client: FlaskClient) -> None:
    *chunks, last = events(client, n=3, stream_options={"include_usage": True})
    texts, roles, reasons = dict.fromkeys(range(3), ""), [], []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles += [choice["index"]] if "role" in choice["delta"] else []
        reasons += [choice["index"]] if choice["finish_reason"] else []
    assert texts == dict.fromkeys(range(3), "w0 w1 w2 w3 ")
    assert sorted(roles) == sorted(reasons) == [0, 1, 2]
    assert last["usage"]["completion_tokens"] == 12


def test_prompt_logprobs_are_vllms_field_of_the_whole_answer(client: FlaskClient) -> None:
    answer = ask(client, prompt_logprobs=0)
    first, *others = answer["prompt_logprobs"]
    assert first is None
    assert len(others) == answer["usage"]["prompt_tokens"] - 1
    (entry,) = others[0].values()
    assert (entry["logprob"], entry["rank"]) == (-1.5, 2)
    assert isinstance(entry["decoded_token"], str)
    assert "prompt_logprobs" not in ask(client)
