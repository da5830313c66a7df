"""Text completions: prompts in every form, logprobs, streams with several choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet_web.api.whole_answer import Completed, usage_of

if TYPE_CHECKING:
    from conftest import Site
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


def test_usage_with_every_chunk_is_that_of_the_text_so_far(site: Site, site_client: FlaskClient) -> None:
    site.start_engine("--step-s", "0.02")
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"model": "demo", "prompt": "x", "max_tokens": 20, "stream": True, "stream_options": options}
    lines = site_client.post(TEXT, json=body).data.decode().split("\n\n")
    chunks = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]
    assert len(chunks) > 3, "there are some between the first and the last"
    text = ""
    for chunk in chunks:
        text += "".join(choice["text"] for choice in chunk["choices"])
        assert chunk["usage"]["completion_tokens"] == len(text.split())


@pytest.mark.parametrize(("prompt", "n"), [(["a", "b"], 1), ("a", 2)])
def test_stream_of_several_prompts_names_each_choice(client: FlaskClient, prompt: object, n: int) -> None:
    body = {
        "model": "demo",
        "prompt": prompt,
        "n": n,
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
        assert chunk["usage"] is None, "it is in one chunk of its own"
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
    assert (model["root"], model["parent"]) == ("smollm2:1", None)
    assert client.get("/v1/models/demo").get_json() == model
    assert client.get("/v1/models/other").status_code == 404


def test_n_completions_of_each_prompt_stand_together(client: FlaskClient) -> None:
    answer = ask(client, prompt=["a", "b c d e"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    alone = [ask(client, prompt=prompt)["usage"]["prompt_tokens"] for prompt in ("a", "b c d e")]
    assert answer["usage"]["prompt_tokens"] == sum(alone), "a prompt counts once"
    assert answer["usage"]["completion_tokens"] == 12


def test_an_echoed_prompt_stands_before_the_text(client: FlaskClient) -> None:
    answer = ask(client, prompt=["Hello there", "x"], echo=True)
    assert [choice["text"] for choice in answer["choices"]] == ["Hello therew0 w1 w2 ", "xw0 w1 w2 "]
    ids = ask(client, prompt=[[1000, 1001]], echo=True)["choices"][0]["text"]
    assert ids.endswith("w0 w1 w2 ")
    assert len(ids) > len("w0 w1 w2 ")
    assert "logprobs" in answer["choices"][0]
    assert answer["choices"][0]["logprobs"] is None


def test_an_echoed_prompt_has_logprobs_too_and_none_for_its_first_token(client: FlaskClient) -> None:
    answer = ask(client, prompt="Hello there, you", echo=True, logprobs=1)
    count = answer["usage"]["prompt_tokens"]
    logprobs = answer["choices"][0]["logprobs"]
    assert [len(values) for values in logprobs.values()] == [count + 3] * 4
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["token_logprobs"][1:] == [-1.5] * (count - 1) + [-0.5] * 3
    assert "".join(logprobs["tokens"][:count]) == "Hello there, you"
    assert logprobs["text_offset"][count] == len("Hello there, you")


def test_a_streamed_echo_is_the_same_text(client: FlaskClient) -> None:
    body = {"model": "demo", "prompt": ["ab", "cd"], "max_tokens": 3, "echo": True, "logprobs": 0}
    whole = client.post(TEXT, json=body).get_json()["choices"]
    lines = client.post(TEXT, json={**body, "stream": True}).data.decode().split("\n\n")[:-2]
    texts, tokens = {0: "", 1: ""}, {0: [], 1: []}
    for line in lines:
        (choice,) = msgspec.json.decode(line.removeprefix("data: "))["choices"]
        texts[choice["index"]] += choice["text"]
        tokens[choice["index"]] += (choice["logprobs"] or {"tokens": []})["tokens"]
    assert texts == {choice["index"]: choice["text"] for choice in whole}
    assert tokens == {choice["index"]: choice["logprobs"]["tokens"] for choice in whole}


@pytest.mark.parametrize("scored_s", ["0", "0.1"])
def test_completions_that_overtake_the_first_wait_for_the_logprobs_of_their_echo(
    site: Site, site_client: FlaskClient, scored_s: str
) -> None:
    served = site.serve("--scored-s", scored_s)
    body = {
        "model": served.model,
        "prompt": ["a b", "c"],
        "n": 3,
        "max_tokens": 3,
        "echo": True,
        "logprobs": 1,
    }
    whole = site_client.post(TEXT, json=body).get_json()["choices"]
    assert [choice["logprobs"]["token_logprobs"] for choice in whole[1:3]] == [
        [None, -1.5, -0.5, -0.5, -0.5]
    ] * 2
    lines = site_client.post(TEXT, json={**body, "stream": True}).data.decode().split("\n\n")[:-2]
    texts, logprobs = dict.fromkeys(range(6), ""), {index: [] for index in range(6)}
    for line in lines:
        (choice,) = msgspec.json.decode(line.removeprefix("data: "))["choices"]
        texts[choice["index"]] += choice["text"]
        logprobs[choice["index"]] += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
    assert texts == {choice["index"]: choice["text"] for choice in whole}
    assert logprobs == {choice["index"]: choice["logprobs"]["token_logprobs"] for choice in whole}


def test_a_prompt_s_cached_tokens_count_once_for_all_its_completions() -> None:
    first, second = (
        Completed(prompt_tokens=8, cached_tokens=cached, completion_tokens=2) for cached in (5, 8)
    )
    usage = usage_of([first, second], 2)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (8, 4, 12)
    assert usage.prompt_tokens_details.cached_tokens == 5
    assert usage_of([first, second], 1).prompt_tokens_details.cached_tokens == 13, "of two prompts"


def test_prompt_logprobs_stand_in_their_choice(client: FlaskClient) -> None:
    answer = ask(client, prompt=["a b", "c"], prompt_logprobs=1)
    lengths = [len(choice["prompt_logprobs"]) for choice in answer["choices"]]
    assert sum(lengths) == answer["usage"]["prompt_tokens"]
    assert all(choice["prompt_logprobs"][0] is None for choice in answer["choices"])


def test_prompt_logprobs_are_those_of_every_completion(client: FlaskClient) -> None:
    choices = ask(client, prompt=["a b", "c d e"], n=2, prompt_logprobs=1)["choices"]
    assert [len(choice["prompt_logprobs"]) for choice in choices] == [2, 2, 3, 3]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"]


def test_timeout_ends_a_running_request_with_what_there_is(site: Site, site_client: FlaskClient) -> None:
    site.start_engine("--step-s", "0.05")
    (choice,) = ask(site_client, prompt="x", max_tokens=400, timeout=2)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")
    assert choice["text"].startswith("w0 w1 ")


@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_must_be_seconds(client: FlaskClient, timeout: float) -> None:
    response = client.post(TEXT, json={"model": "demo", "prompt": "x", "timeout": timeout})
    assert response.status_code == 400
    assert response.get_json()["error"]["param"] == "timeout"


@pytest.mark.parametrize(("status", "code"), [(429, "overloaded"), (503, "deadline_passed")])
@pytest.mark.parametrize("stream", [False, True])
def test_engine_that_refuses_says_when_to_retry(
    site: Site, site_client: FlaskClient, status: int, code: str, stream: bool
) -> None:
    served = site.serve("--refuse", str(status), "--refuse-code", code)
    response = site_client.post(TEXT, json={"model": served.model, "prompt": "x", "stream": stream})
    assert (response.status_code, response.get_json()["error"]["code"]) == (status, code)
    assert response.headers["Retry-After"] == "7"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 100, "logit_bias": dict.fromkeys(range(20_000), 1)}, "n", "100 sequences are asked for"),
        ({"n": 100, "allowed_token_ids": [5] * 100_000}, "n", "bytes in all"),
        ({"n": 100, "cache_salt": "s" * 100_000}, "n", "bytes in all"),
        ({"prompt": ["x"] * 99, "stop_token_ids": [5] * 99_999}, "prompt", "99 sequences are asked for"),
        ({"prompt": ["x"] * 129, "n": 2}, "prompt", "at most 256 completions"),
        ({"prompt": ["x"] * 257}, "prompt", "at most 256 completions"),
        ({"prompt": [[5] * 60] * 128, "n": 2, "prompt_logprobs": 20}, None, ""),
        ({"prompt": [[5] * 60] * 2, "n": 128, "logprobs": 20, "echo": True}, None, ""),
    ],
)
def test_a_request_cannot_multiply_what_it_carries(
    client: FlaskClient, fields: dict[str, Any], param: str | None, words: str
) -> None:
    response = client.post(TEXT, json={"model": "demo", "max_tokens": 1, "prompt": "x", **fields})
    error = {} if response.status_code == 200 else response.get_json()["error"]
    assert (error.get("param"), words in error.get("message", "")) == (param, True)


def test_large_settings_are_fine_for_one_completion(client: FlaskClient) -> None:
    ask(client, prompt="x", allowed_token_ids=list(range(50)) * 20_000)


def test_the_logprobs_of_prompts_are_bounded(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivet_web.api.inference.MAX_PROMPT_SCORES", 100)
    ask(client, prompt=[5] * 25, prompt_logprobs=3)
    for more in ({"prompt": [5] * 26}, {"prompt": [5] * 13, "n": 2}, {"prompt": [[5] * 13] * 2}):
        response = client.post(TEXT, json={"model": "demo", "max_tokens": 1, "prompt_logprobs": 3, **more})
        assert response.status_code == 400
        assert "are 104 logprobs of the prompt" in response.get_json()["error"]["message"]


def test_a_model_of_another_registry_is_told_what_exists_here(client: FlaskClient) -> None:
    for name in ("org/model", "org%2Fmodel"):
        response = client.get(f"/v1/models/{name}")
        assert (response.status_code, response.json["error"]["code"]) == (404, "model_not_found")
        assert "deployed: demo" in response.json["error"]["message"]


@pytest.mark.parametrize("path", ["/completions", "/v1/v1/completions"])
def test_a_base_url_with_too_little_or_too_much_is_told(client: FlaskClient, path: str) -> None:
    response = client.post(path, json={"model": "demo", "prompt": "a"})
    assert response.status_code == 404
    assert "did you mean /v1/completions?" in response.json["error"]["message"]
    assert "did you mean" not in client.post("/v2/completions").json["error"]["message"]
