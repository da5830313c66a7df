"""Ollama's API: lines, whole answers, options, names, created models, failures in its own form."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from trivet.structured_outputs import MAX_JSON_BYTES
from trivet_registry.aliases_store import remove_alias, set_alias
from trivet_registry.deployments_store import get_deployment
from trivet_web.dialects.ollama.options import read_options
from trivet_web.web_process import EXTENSION

if TYPE_CHECKING:
    from conftest import Site, Speaker
    from flask.testing import FlaskClient

HELLO: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
PROMPT: dict[str, Any] = {"model": "demo", "prompt": "hello"}
COUNTS = {
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count"),
    "eval_duration",
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = 'I look.<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def post(client: FlaskClient, path: str, **body: object) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.data
    return response.get_json()


def test_chat_streams_lines_unless_told_otherwise(speaker: Speaker) -> None:
    *pieces, last = speaker.lines("/api/chat", "Hi there", **HELLO)
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hi there"
    assert all(not piece["done"] and piece["message"]["role"] == "assistant" for piece in pieces)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert set(last) >= COUNTS
    assert last["eval_count"] == 3
    assert last["total_duration"] >= last["prompt_eval_duration"] > 0
    datetime.fromisoformat(last["created_at"])


def test_whole_answer_is_one_object(client: FlaskClient) -> None:
    answer = post(client, "/api/chat", **HELLO, stream=False, options={"num_predict": 3})
    assert answer["message"] == {"role": "assistant", "content": "w0 w1 w2 "}
    assert (answer["model"], answer["done"], answer["done_reason"]) == ("demo", True, "length")
    assert set(answer) >= COUNTS
    assert answer["eval_count"] == 3


def test_generate_is_the_templates_prompt_and_raw_is_none(client: FlaskClient) -> None:
    chat = post(client, "/api/generate", **PROMPT, stream=False, options={"num_predict": 2})
    raw = post(client, "/api/generate", **PROMPT, stream=False, raw=True, options={"num_predict": 2})
    assert chat["response"] == raw["response"] == "w0 w1 "
    assert chat["prompt_eval_count"] > raw["prompt_eval_count"] > 0
    told = post(client, "/api/generate", **PROMPT, system="Be brief, please.", stream=False)
    assert told["prompt_eval_count"] != chat["prompt_eval_count"]
    response = client.post("/api/generate", json={**PROMPT, "raw": True, "options": {"num_predict": 2}})
    *pieces, last = [json.loads(line) for line in response.data.splitlines()]
    assert "".join(piece["response"] for piece in pieces) == "w0 w1 "
    assert last["done_reason"] == "length"


def test_json_is_read_whatever_the_content_type(client: FlaskClient) -> None:
    data = json.dumps({**PROMPT, "stream": False, "options": {"num_predict": 1}})
    for kind in ("application/x-www-form-urlencoded", "text/plain", None):
        response = client.post("/api/generate", data=data, content_type=kind)
        assert response.get_json()["response"] == "w0 "


def test_options_are_carried_out_or_refused_by_name(client: FlaskClient) -> None:
    stopped = post(client, "/api/chat", **HELLO, stream=False, options={"stop": ["w2"], "num_predict": -1})
    assert (stopped["message"]["content"], stopped["done_reason"]) == ("w0 w1 ", "stop")
    neutral = {"num_ctx": 4096, "num_gpu": 99, "mirostat": 0, "repeat_last_n": 64, "top_k": 40, "min_p": 0.1}
    post(client, "/api/chat", **HELLO, stream=False, options={**neutral, "num_predict": 1, "seed": 7})
    for options, words in (
        ({"mirostat": 2}, "options.mirostat is 2"),
        ({"repeat_last_n": 8}, "options.repeat_last_n"),
        ({"num_predict": -9}, "options.num_predict is -9"),
        ({"temperature": "hot"}, "options.temperature is wrong"),
        ({"repeat_penalty": -1}, "options.repeat_penalty is -1"),
        ({"num_predict": 900}, "options.num_predict"),
        ({"top_p": 2}, "options.top_p is 2"),
        ({"stop": ["x"] * 65}, "options.stop has 65"),
    ):
        response = client.post("/api/chat", json={**HELLO, "options": options})
        assert response.status_code == 400
        assert words in response.get_json()["error"]


def test_a_penalty_that_looks_at_no_token_is_none() -> None:
    given = {"repeat_penalty": 1.5}
    for last_n, penalty in ((0, None), (64, 1.5), (-1, 1.5)):
        options = read_options({**given, "repeat_last_n": last_n})
        assert options.fields()["repetition_penalty"] == penalty


def test_no_limit_is_a_limit_of_zero_or_less(client: FlaskClient) -> None:
    answers = [
        post(client, "/api/chat", **HELLO, stream=False, options={"num_predict": limit})["message"]
        for limit in (0, -1, -2)
    ]
    assert len(answers[0]["content"]) > 0
    assert answers == [answers[0]] * 3


def test_format_is_a_form_of_the_answer(client: FlaskClient) -> None:
    for form in ("json", {"type": "object", "properties": {"a": {"type": "string"}}}, ""):
        post(client, "/api/chat", **HELLO, stream=False, format=form)
    response = client.post("/api/chat", json={**HELLO, "format": "xml"})
    assert (response.status_code, "format is 'xml'" in response.get_json()["error"]) == (400, True)


def test_calls_are_objects_streamed_and_not(speaker: Speaker) -> None:
    whole = speaker.ask("/api/chat", CALL, **HELLO, tools=[WEATHER], stream=False)["message"]
    function = {"name": "weather", "arguments": {"city": "Paris"}, "index": 0}
    assert (whole["content"], whole["tool_calls"]) == ("I look.", [{"function": function}])
    lines = speaker.lines("/api/chat", CALL, **HELLO, tools=[WEATHER])
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert calls == [{"function": function}]
    assert "".join(line["message"]["content"] for line in lines) == "I look."


def test_call_that_breaks_is_content_in_a_stream_too(speaker: Speaker) -> None:
    broken = '<tool_call>\n{"name": "weather", "arguments": {"city": '
    lines = speaker.lines("/api/chat", broken, **HELLO, tools=[WEATHER])
    assert not any("tool_calls" in line["message"] for line in lines)
    assert "".join(line["message"]["content"] for line in lines).strip() == broken.strip()


def test_earlier_calls_and_results_are_read(speaker: Speaker) -> None:
    turns = [
        *HELLO["messages"],
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "content": "rain", "tool_name": "weather"},
    ]
    more = speaker.ask("/api/chat", "Umbrella", model="demo", messages=turns, tools=[WEATHER], stream=False)
    less = speaker.ask("/api/chat", "Umbrella", **HELLO, tools=[WEATHER], stream=False)
    assert more["prompt_eval_count"] > less["prompt_eval_count"]


def test_thinking_is_a_field_of_its_own(speaker: Speaker, plain: Speaker) -> None:
    says = "<think>\nhm\n</think>\n\nYes"
    whole = speaker.ask("/api/chat", says, **HELLO, think=True, stream=False)["message"]
    assert (whole["thinking"].strip(), whole["content"]) == ("hm", "Yes")
    lines = speaker.lines("/api/generate", says, **PROMPT, think=True)
    assert "".join(line.get("thinking", "") for line in lines).strip() == "hm"
    assert "".join(line["response"] for line in lines) == "Yes"
    refused = plain.post("/api/chat", "Yes", **HELLO, think="high")
    assert (refused.status_code, "does not think" in refused.get_json()["error"]) == (400, True)


def test_logprobs_are_a_list_of_tokens(client: FlaskClient) -> None:
    options = {"num_predict": 2}
    for path, body in (
        ("/api/chat", HELLO),
        ("/api/generate", PROMPT),
        ("/api/generate", {**PROMPT, "raw": True}),
    ):
        answer = post(client, path, **body, stream=False, logprobs=True, top_logprobs=2, options=options)
        assert [len(entry["top_logprobs"]) for entry in answer["logprobs"]] == [2, 2]


def test_name_has_a_tag_and_latest_is_none(client: FlaskClient) -> None:
    for name in ("demo", "demo:latest", "smollm2:1"):
        answer = post(
            client, "/api/generate", model=name, prompt="a", stream=False, options={"num_predict": 1}
        )
        assert answer["model"] == name
    response = client.post("/api/generate", json={"model": "demo:7b", "prompt": "a"})
    assert response.status_code == 404
    assert response.get_json() == {
        "error": "model 'demo:7b' not found; there is: demo; launch it with `trivet launch PATH --name demo`"
    }


def test_a_tag_may_be_an_alias(client: FlaskClient) -> None:
    database = client.application.extensions[EXTENSION].database
    with database.session() as session:
        set_alias(session, "smollm2", "prod", "1")
    options = {"num_predict": 1}
    answer = post(client, "/api/generate", model="smollm2:prod", prompt="a", stream=False, options=options)
    assert answer["model"] == "smollm2:prod"
    with database.session() as session:
        remove_alias(session, "smollm2", "prod")
    assert client.post("/api/generate", json={"model": "smollm2:prod", "prompt": "a"}).status_code == 404


def test_request_without_prompt_says_whether_it_is_loaded(client: FlaskClient) -> None:
    assert post(client, "/api/generate", model="demo")["done_reason"] == "load"
    assert post(client, "/api/chat", model="demo", messages=[])["done_reason"] == "load"
    response = client.post("/api/generate", json={"model": "demo", "keep_alive": 0})
    assert (response.status_code, "trivet stop demo" in response.get_json()["error"]) == (400, True)


def test_lists_show_what_requests_may_name(client: FlaskClient) -> None:
    (tag,) = client.get("/api/tags").get_json()["models"]
    assert (tag["name"], tag["model"], tag["details"]["format"]) == ("demo:latest", "demo:latest", "gguf")
    assert tag["size"] > 10_000_000
    assert len(tag["digest"]) == 64
    (loaded,) = client.get("/api/ps").get_json()["models"]
    assert (loaded["name"], loaded["context_length"], loaded["size_vram"]) == ("demo:latest", 512, 0)
    shown = post(client, "/api/show", model="demo")
    assert "completion" in shown["capabilities"]
    assert shown["model_info"][f"{shown['model_info']['general.architecture']}.context_length"] == 512
    assert "im_start" in shown["template"]
    assert set(client.get("/api/version").get_json()) == {"version"}


@pytest.mark.parametrize("idle_timeout_s", ["none", "Null", "", "1e12"])
def test_what_is_never_unloaded_is_listed_as_loaded_for_ever(
    site: Site, site_client: FlaskClient, idle_timeout_s: str
) -> None:
    with site.database.session() as session:
        get_deployment(session, "demo").settings = {"idle_timeout_s": idle_timeout_s}
    site.start_engine()
    (loaded,) = site_client.get("/api/ps").get_json()["models"]
    assert loaded["expires_at"].startswith("9999-12-31")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"images": ["aGk="]}, "images has 1"),
        ({"suffix": "x"}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "/api/chat"),
        ({"keep_alive": "soon"}, "keep_alive is 'soon'"),
        ({"truncate": True}, "truncate is true"),
        ({"shift": True}, "shift is true"),
        ({"shift": True, "raw": True}, "shift is true"),
        ({"format": {"description": "x" * (MAX_JSON_BYTES + 1)}}, "format has"),
    ],
)
def test_what_is_not_carried_out_is_refused_by_name(
    client: FlaskClient, fields: dict[str, Any], words: str
) -> None:
    post(client, "/api/generate", **PROMPT, stream=False, truncate=False, shift=False)
    response = client.post("/api/generate", json={**PROMPT, **fields})
    assert response.status_code == 400
    assert words in response.get_json()["error"]


def test_failure_of_an_engine_is_a_line_of_the_stream(site: Any, site_client: FlaskClient) -> None:
    site.start_engine("--refuse", "429")
    response = site_client.post("/api/chat", json=HELLO)
    assert response.status_code == 429
    assert response.headers["Retry-After"] == "7"
    assert list(response.get_json()) == ["error"]


def test_acts_need_the_token(client: FlaskClient) -> None:
    for method, path in (
        *(("POST", f"/api/{act}") for act in ("create", "copy", "pull", "push")),
        ("DELETE", "/api/delete"),
    ):
        response = client.open(path, method=method, json={"model": "demo", "from": "demo"})
        assert (response.status_code, list(response.get_json())) == (401, ["error"]), path


def test_created_model_is_its_base_with_a_system_message_and_options(speaker: Speaker) -> None:
    modelfile = (
        "# a joke\nFROM demo\nPARAMETER num_predict 2\nPARAMETER stop END\n"
        'SYSTEM """\nYou are Mario,\nof course.\n"""\nMESSAGE user hi'
    )
    made = speaker.manage("POST", "/api/create", model="mario", modelfile=modelfile)
    assert [json.loads(line)["status"] for line in made.data.splitlines()][-1] == "success"
    answer = speaker.ask("/api/chat", "It is me, Mario", **{**HELLO, "model": "mario:latest"}, stream=False)
    assert (answer["message"]["content"], answer["done_reason"]) == ("It is ", "length")
    base = speaker.ask("/api/chat", "It is me, Mario", **HELLO, stream=False)
    assert answer["prompt_eval_count"] > base["prompt_eval_count"] + 8
    shown = speaker.ask("/api/show", "", model="mario")
    assert shown["system"].strip() == "You are Mario,\nof course."
    assert "PARAMETER num_predict 2" in shown["modelfile"]
    assert "mario:latest" in [tag["name"] for tag in speaker.client.get("/api/tags").get_json()["models"]]
    assert speaker.manage("POST", "/api/copy", source="mario", destination="luigi:v2").status_code == 200
    assert speaker.ask("/api/show", "", model="luigi:v2")["details"]["parent_model"] == "demo"
    for name in ("mario", "luigi:v2"):
        assert speaker.manage("DELETE", "/api/delete", model=name).status_code == 200
        assert speaker.post("/api/show", "", model=name).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "m"}, 400, "from is missing"),
        ({"model": "m", "from": "nothing"}, 404, "nothing"),
        ({"model": "demo", "from": "demo"}, 409, "the name of a deployment"),
        ({"model": "../m", "from": "demo"}, 400, "not usable"),
        ({"model": "m", "from": "demo", "template": "{{ .Prompt }}"}, 400, "template"),
        ({"model": "m", "modelfile": "FROM demo\nTEMPLATE {{ .Prompt }}"}, 400, "line 2"),
        ({"model": "m", "modelfile": "FROM demo\nADAPTER ./x"}, 400, "ADAPTER"),
        ({"model": "m", "modelfile": "FORM demo"}, 400, "FORM"),
        ({"model": "m", "modelfile": 'FROM demo\nSYSTEM """x'}, 400, "line 2"),
        ({"model": "m", "from": "demo", "parameters": {"mirostat": 2}}, 400, "options.mirostat"),
        ({"model": "m", "files": {"a": "sha256:0"}}, 400, "trivet models add"),
    ],
)
def test_creation_that_cannot_be_is_refused_clearly(
    speaker: Speaker, body: dict[str, Any], status: int, words: str
) -> None:
    response = speaker.manage("POST", "/api/create", **body)
    assert response.status_code == status
    assert words in response.get_json()["error"]


def test_pull_of_what_is_there_succeeds_and_else_says_what_to_do(speaker: Speaker) -> None:
    there = speaker.manage("POST", "/api/pull", model="demo", stream=False)
    assert there.get_json() == {"status": "success"}
    absent = speaker.manage("POST", "/api/pull", model="llama3:8b")
    assert absent.status_code == 404
    assert "trivet launch PATH --name llama3" in absent.get_json()["error"]
    assert speaker.manage("DELETE", "/api/delete", model="demo").status_code == 409


def test_files_are_not_uploaded_and_it_is_said_what_to_do(speaker: Speaker) -> None:
    path = "/api/blobs/sha256:" + "0" * 64
    assert speaker.manage("HEAD", path).status_code == 400
    refused = speaker.manage("POST", path)
    assert refused.status_code == 400
    assert "trivet models add PATH" in refused.get_json()["error"]


def test_root_says_that_it_runs_and_shows_browsers_the_console(client: FlaskClient) -> None:
    assert client.get("/", headers={"Accept": "*/*"}).data == b"Ollama is running"
    assert client.head("/").status_code == 200
    page = client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.mimetype == "text/html"
