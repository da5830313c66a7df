"""Bodies that are wrong: always a 4xx error object, never a 500 (cases/api.md 9 to 12)."""

from __future__ import annotations

import io
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from gunicorn.http.errors import InvalidChunkSize
from sqlalchemy.exc import OperationalError

from trivet_web.accounts.rights import Right, requires
from trivet_web.api.structured_fields import StructuredFields

if TYPE_CHECKING:
    from flask.testing import FlaskClient

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def error_of(client: FlaskClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    response = client.post(path, content_type="application/json", **data)
    assert response.is_json, response.data
    answer = response.get_json()
    assert set(answer) == {"error", "detail"}, answer
    assert answer["detail"] == answer["error"]["message"]  # where Xinference's clients look
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return response.status_code, answer["error"]


WRONG_FIELDS = [
    ({"max_tokens": "many"}, "max_tokens", "expected int"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"max_tokens": 2.5}, "max_tokens", "float"),
    ({"max_tokens": True}, "max_tokens", "bool"),
    ({"max_tokens": 10**30}, "max_tokens", "2147483647"),
    ({"max_tokens": 0}, "max_tokens", ">= 1"),
    ({"max_completion_tokens": -5}, "max_completion_tokens", "-5"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", ">= 1"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": "hi"}, "messages", "expected array"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "wizard"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "int"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
        "missing",
    ),
    ({"messages": [{"role": "user", "content": "a\0b"}]}, "messages[0].content", "NUL"),
    ({"model": 5}, "model", "str"),
    ({"temperature": -0.5}, "temperature", "-0.5"),
    ({"temperature": "hot"}, "temperature", "str"),
    ({"top_p": 1.5}, "top_p", "1.5"),
    ({"min_p": -1}, "min_p", "-1"),
    ({"top_k": -7}, "top_k", "-7"),
    ({"seed": 2**64}, "seed", "64-bit"),
    ({"stop": [""]}, "stop", "strings that are not empty"),
    ({"stop": [1]}, "stop[0]", "str"),
    ({"stop": ["x"] * 65}, "stop", "has 65 strings; at most 64"),
    ({"top_logprobs": 3}, "logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"min_tokens": 5}, "min_tokens", "max_tokens"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "ids"),
    ({"cache_salt": 1}, "cache_salt", "str"),
]


@pytest.mark.parametrize(("fields", "param", "words"), WRONG_FIELDS)
def test_wrong_field_is_named_with_its_value_or_type(
    client: FlaskClient, fields: dict[str, Any], param: str, words: str
) -> None:
    status, error = error_of(client, CHAT, {**HELLO, **fields})
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"\xff\xfe", "JSON"),
        (b'{"model": "a\xff"}', "UTF-8"),
        (b'{"model": "demo", "messages": [{"role": "user", "content": "a\0"}]}', "JSON"),
        (b"[" * 10_000 + b"]" * 10_000, "object"),
        (b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "array"),
        (b'{"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "model"),
        (b'{"model": "demo"}', "messages"),
        (b'{"model": "demo", "messages": [{"role": "user", "content": "\\ud800"}]}', "messages[0].content"),
        (b'{"model": "demo", "temperature": 1e999}', "temperature"),
    ],
)
def test_body_that_is_no_such_object_is_400(client: FlaskClient, body: bytes, words: str) -> None:
    status, error = error_of(client, CHAT, body)
    assert status == 400
    assert words in error["message"]


@pytest.mark.parametrize("number", [b"1e309", b"-1e309", b"1" * 5000])
@pytest.mark.parametrize("name", ["logit_bias", "n", "guided_json", "temperature", "max_tokens"])
def test_number_beyond_every_range_is_400(client: FlaskClient, name: str, number: bytes) -> None:
    body = b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "%s": %s}'
    status, error = error_of(client, CHAT, body % (name.encode(), number))
    assert (status, error["param"]) == (400, name)


def test_nul_is_found_beside_a_number_beyond_every_range(client: FlaskClient) -> None:
    body = b'{"model": "demo", "messages": [{"role": "user", "content": "a\\u0000"}], "x": [1e309, %s]}'
    status, error = error_of(client, CHAT, body % (b"1" * 5000))
    assert (status, error["param"]) == (400, "messages[0].content")


def test_nul_in_a_deep_body_is_400_at_every_depth(client: FlaskClient) -> None:
    """The decoder takes a little deeper nesting than the search for the NUL's field."""
    for depth in range(800, 1000, 2):
        body = b'{"model": "demo", "messages": [], "x": %s"\\u0000"%s}' % (b"[" * depth, b"]" * depth)
        assert error_of(client, CHAT, body)[0] == 400


def test_malformed_chunk_is_400(client: FlaskClient) -> None:
    class Broken(io.RawIOBase):
        """What gunicorn gives in place of a body whose framing is wrong."""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            raise InvalidChunkSize(b"zz")

    extras: dict[str, Any] = {"wsgi.input": Broken(), "wsgi.input_terminated": True}
    response = client.post(CHAT, content_type="application/json", environ_overrides=extras)
    assert response.status_code == 400
    assert "zz" in response.get_json()["error"]["message"]


def test_body_over_the_limit_is_413_with_both_sizes(client: FlaskClient) -> None:
    status, error = error_of(client, CHAT, b'{"model": "' + b"x" * (10 << 20) + b'"}')
    assert status == 413
    assert error["code"] == "request_too_large"
    assert "8388608" in error["message"]
    assert str((10 << 20) + 13) in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": None},
        {"tools": []},
        {"tools": None},
        {"tool_choice": "none"},
        {"logit_bias": {}},
        {"user": ""},
        {"n": 1},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {}, "strict": True},
            }
        },
        {"structured_outputs": {"grammar": 'root ::= "a"'}, "response_format": None},
        {"guided_regex": "a", "guided_decoding_backend": "auto"},
        {"store": False, "metadata": {"a": "b"}, "no_such_field": [1, {"x": None}]},
        {"stream": None, "stream_options": None, "seed": None, "logprobs": None, "top_logprobs": None},
        {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0},
        {"parallel_tool_calls": True},
    ],
)
def test_null_and_neutral_and_unknown_fields_are_accepted(
    client: FlaskClient, fields: dict[str, Any]
) -> None:
    assert client.post(CHAT, json={**HELLO, **fields}).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 3},
        {"use_beam_search": True},
        {"functions": [{"name": "f"}]},
        {"store": True},
        {"logits_processors": ["f"]},
        {"chat_template": "{{ messages }}"},
        {"echo": True},
    ],
)
def test_fields_that_are_not_carried_out_are_refused_by_name(
    client: FlaskClient, fields: dict[str, Any]
) -> None:
    status, error = error_of(client, CHAT, {**HELLO, **fields})
    assert (status, error["code"]) == (400, "unsupported_parameter")
    assert error["param"] == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt[1]"),
        ({"prompt": ["x"] * 257}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt": ["x"] * 100, "n": 3}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_wrong_completion_request_is_400(client: FlaskClient, fields: dict[str, Any], param: str) -> None:
    status, error = error_of(client, TEXT, {"model": "demo", "prompt": "x", **fields})
    assert status == 400
    assert error["param"] == param


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("n", 0, "between 1 and 128"),
        ("presence_penalty", 2.1, "between -2 and 2"),
        ("frequency_penalty", -3, "between -2 and 2"),
        ("repetition_penalty", 0, "a number > 0"),
        ("logit_bias", {"5": 101}, "between -100 and 100"),
        ("logit_bias", {"-5": 1}, "token ids >= 0"),
        ("logit_bias", {"five": 1}, "int"),
        ("allowed_token_ids", [], "at least one id"),
        ("allowed_token_ids", [-1], "ids >= 0"),
        ("bad_words", [" "], "not empty"),
        ("bad_words", ["x"] * 257, "at most 256 words"),
        ("prompt_logprobs", 21, "between 0 and 20"),
        ("prompt_logprobs", -1, "between 0 and 20"),
        ("min_tokens", 9, "at most max_tokens"),
    ],
)
def test_a_sampling_field_out_of_range_is_400_with_value_and_range(
    client: FlaskClient, path: str, field: str, value: Any, wanted: str
) -> None:
    body = {**HELLO, "prompt": "x", "max_tokens": 4, field: value}
    status, error = error_of(client, path, body)
    assert (status, error["code"]) == (400, "invalid_request")
    assert error["param"].split(".")[0] == field
    assert field in error["message"]
    assert wanted in error["message"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
            "no json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            "guided_regex",
            "send one of them",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "has none of them"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", "json, regex"),
        ({"guided_choice": []}, "guided_choice", "guided_choice has 0 texts"),
        ({"guided_json": {"a": "b" * (1 << 20)}}, "guided_json", "at most 1048576"),
        ({"guided_json": {}, "guided_grammar": "x"}, "guided_grammar", "guided_json and guided_grammar both"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "expected str"),
    ],
)
def test_a_wrong_form_is_400_that_names_it(
    client: FlaskClient, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    status, error = error_of(client, path, {**HELLO, "prompt": "x", **fields})
    assert (status, error["param"]) == (400, param)
    assert words in error["message"]


def test_a_schema_goes_to_the_engine_as_text() -> None:
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": [1]}}}},
        {"guided_json": {"a": [1]}},
        {"structured_outputs": {"json": '{"a":[1]}'}},
    ):
        form = msgspec.convert({"model": "demo", **fields}, StructuredFields).structured_outputs_params()
        assert form is not None
        assert form.json == '{"a":[1]}'


def test_a_choice_among_completions_is_refused_with_what_would_do(client: FlaskClient) -> None:
    _, error = error_of(client, TEXT, {"model": "demo", "prompt": "x", "best_of": 3, "n": 1})
    assert "best_of is 3" in error["message"]
    assert "ask for n completions with logprobs" in error["message"]
    for fields in ({"best_of": 2, "n": 2}, {"best_of": 1}, {"best_of": 1, "n": 2}, {"best_of": None}):
        answer = client.post(TEXT, json={"model": "demo", "prompt": "x", "max_tokens": 1, **fields})
        assert (answer.status_code, len(answer.json["choices"])) == (200, fields.get("n", 1)), answer.data


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_byte_order_mark_before_the_body_is_no_part_of_it(client: FlaskClient, path: str) -> None:
    body = msgspec.json.encode({**HELLO, "prompt": "x", "max_tokens": 1})
    answer = client.post(path, data=b"\xef\xbb\xbf" + body)
    assert answer.status_code == 200, answer.data
    assert client.post(path, data=b"\xef\xbb\xbf" * 2 + body).status_code == 400


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/embeddings", "/v1/embeddings"),
        ("/v1/tokenize", "/tokenize"),
    ],
)
def test_a_path_with_a_wrong_base_is_told_the_right_one(client: FlaskClient, asked: str, meant: str) -> None:
    answer = client.post(asked, json={})
    assert answer.status_code == 404
    assert f"did you mean {meant}?" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"separate_reasoning": True, "stream_reasoning": True, "no_stop_trim": False, "regex": None},
        {"mirostat": 0, "repeat_penalty": 1.0, "typical_p": 1},
        {"n_predict": -1, "grammar": "", "samplers": []},
    ],
)
def test_what_other_servers_clients_send_by_default_is_accepted(
    client: FlaskClient, fields: dict[str, Any]
) -> None:
    answer = client.post(CHAT, json={**HELLO, **fields})
    assert answer.status_code == 200, answer.data


def test_prompt_logprobs_are_refused_in_a_stream(client: FlaskClient) -> None:
    status, error = error_of(client, CHAT, {**HELLO, "stream": True, "prompt_logprobs": 0})
    assert (status, error["param"]) == (400, "prompt_logprobs")


def test_registry_that_cannot_be_used_is_503_with_its_reason(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    @requires(Right.INFER)
    def fail(*_: object, **__: object) -> None:
        raise OperationalError("COMMIT", None, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setitem(client.application.view_functions, "chat.create", fail)
    status, error = error_of(client, CHAT, HELLO)
    assert (status, error["code"]) == (503, "unavailable")
    assert "disk is full" in error["message"]


def test_unknown_route_and_wrong_method_are_error_objects(client: FlaskClient) -> None:
    missing = client.get("/v1/nothing")
    assert (missing.status_code, missing.get_json()["error"]["code"]) == (404, "not_found")
    wrong = client.get(CHAT)
    assert (wrong.status_code, wrong.get_json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["Allow"]


@pytest.mark.parametrize("value", [b"1", b'"\\u0000"'])
def test_a_name_that_is_no_text_is_400(client: FlaskClient, value: bytes) -> None:
    body = b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "\x87a": ' + value + b"}"
    status, error = error_of(client, CHAT, body)
    assert (status, "no valid JSON" in error["message"]) == (400, True)


def test_a_compressed_body_is_refused_by_its_name(client: FlaskClient) -> None:
    body = {"json": HELLO}
    refused = client.post(CHAT, headers={"Content-Encoding": "gzip"}, **body)
    assert refused.status_code == 400
    assert refused.get_json()["error"]["param"] == "Content-Encoding"
    assert client.post(CHAT, headers={"Content-Encoding": "identity"}, **body).status_code == 200
