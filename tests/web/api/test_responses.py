"""/v1/responses: items of the answer, events of the stream, what goes in, what is stored."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from openai.types.responses import Response as SdkResponse
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

from trivet.text.chat_template import ChatTemplate
from trivet.text.tool_calls.hermes import HermesParser
from trivet_web.api.responses_request import ResponseRequest
from trivet_web.stored_objects import StoredObjects

if TYPE_CHECKING:
    from conftest import Site, Speaker

TEMPLATE = (
    "{{ tools }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
)
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
SAID = (
    "<think>\nHm.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
)
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def ask(speaker: Speaker, says: str = SAID, **fields: object) -> Any:
    speaker.file.write_text(says)
    return speaker.client.post("/v1/responses", json={"model": "demo", "input": "hello", **fields})


def whole(speaker: Speaker, says: str = SAID, **fields: object) -> dict[str, Any]:
    response = ask(speaker, says, **fields)
    assert response.status_code == 200, response.data
    answer = response.get_json()
    SdkResponse.model_validate(answer)
    return answer


def events(speaker: Speaker, says: str = SAID, **fields: object) -> list[dict[str, Any]]:
    response = ask(speaker, says, stream=True, **fields)
    assert response.status_code == 200, response.data
    found = []
    for block in response.data.decode().strip().split("\n\n"):
        name, data = block.split("\n", 1)
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _EVENT.validate_python(event)
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_thinking_text_and_calls_are_items(speaker: Speaker) -> None:
    answer = whole(speaker, tools=[TOOL])
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    thinking, message, call = answer["output"]
    assert thinking["content"][0]["text"] == "Hm."
    assert message["content"][0]["text"] == "I look."
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Paris"}')
    assert call["call_id"].startswith("call_")
    assert answer["status"] == "completed"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0


def test_events_tell_of_the_same_items(speaker: Speaker) -> None:
    told = events(speaker, tools=[TOOL])
    kinds = [event["type"].removeprefix("response.") for event in told]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == "completed"
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 3
    final = told[-1]["response"]["output"]
    assert [item["type"] for item in final] == ["reasoning", "message", "function_call"]
    for kind, of in (("reasoning_text", 0), ("output_text", 1), ("function_call_arguments", 2)):
        joined = "".join(event["delta"] for event in told if event["type"] == f"response.{kind}.delta")
        assert joined == (final[of].get("arguments") or final[of]["content"][0]["text"])
        assert {e["output_index"] for e in told if e["type"] == f"response.{kind}.delta"} == {of}


def test_what_the_tokens_do_not_suffice_for_is_incomplete(client: Any) -> None:
    fields = {"model": "demo", "input": "hello", "max_output_tokens": 2}
    answer = client.post("/v1/responses", json=fields).get_json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][-1]["status"] == "incomplete"
    stream = client.post("/v1/responses", json={**fields, "stream": True}).data.decode()
    assert "event: response.incomplete" in stream


def test_a_call_that_is_whole_before_the_tokens_are_used_up_is_complete(speaker: Speaker) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    call = call.replace('{"n', "{" + " " * (-len(call) % 3) + '"n')  # the model says three characters a token
    fields = {"tools": [TOOL], "max_output_tokens": len(call) // 3}
    for response in (
        whole(speaker, f"{call} And more.", **fields),
        events(speaker, f"{call} And more.", **fields)[-1]["response"],
    ):
        assert response["status"] == "incomplete"
        assert [(one["name"], one["status"]) for one in response["output"]] == [("weather", "completed")]


def test_input_of_parts_is_the_prompt_of_the_same_chat(speaker: Speaker) -> None:
    parts = [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]
    chat = speaker.ask("x")["usage"]["prompt_tokens"]
    for given in ("hello", [{"role": "user", "content": "hello"}], [{"role": "user", "content": parts}]):
        assert whole(speaker, "x", input=given)["usage"]["input_tokens"] == chat
    told = [{"role": "system", "content": "brief"}, {"role": "user", "content": "hello"}]
    assert (
        whole(speaker, "x", instructions="brief")["usage"]["input_tokens"]
        == (speaker.ask("x", messages=told)["usage"]["prompt_tokens"])
    )


def test_what_came_out_goes_in_again(speaker: Speaker) -> None:
    first = whole(speaker, tools=[TOOL])
    call = first["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    given = [{"role": "user", "content": "hello"}, *first["output"], result]
    second = whole(speaker, "Sunny.", input=given, tools=[TOOL])
    assert second["output"][0]["content"][0]["text"] == "Sunny."
    chat = [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": call["arguments"]},
                }
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "1"},
    ]
    tools = [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}]
    asked = speaker.ask("x", messages=chat, tools=tools)
    assert second["usage"]["input_tokens"] == asked["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"store": True}, "store", "store_responses"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "store_responses"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", "computer_call"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "input_image",
        ),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role", "wizard"),
        ({"input": []}, "input", "empty"),
        ({"input": "word " * 700}, "input", "tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "'f'"),
        ({"max_tokens": 5}, "max_tokens", "send max_output_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
        (
            {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},
            "structured_outputs",
            "one of them",
        ),
        ({"stop": ["x"] * 65}, "stop", "64"),
        ({"max_output_tokens": 0}, "max_output_tokens", "0"),
        ({"background": True}, "background", "true"),
        ({"truncation": "auto"}, "truncation", "auto"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "low"),
        ({"include": ["file_search_call.results"]}, "include", "file_search"),
        ({"temperature": 5, "top_p": 2}, "top_p", "2"),
    ],
)
def test_what_is_wrong_is_named(speaker: Speaker, fields: dict[str, Any], param: str, words: str) -> None:
    response = ask(speaker, "x", **fields)
    error = response.get_json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 7),
        ("temperature", 0.5),
        ("top_p", 0.5),
        ("top_k", 5),
        ("min_p", 0.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 0.5),
        ("repetition_penalty", 1.5),
        ("logit_bias", {5: 1.0}),
        ("allowed_token_ids", [5]),
        ("bad_words", ["x"]),
        ("min_tokens", 2),
        ("stop_token_ids", [5]),
        ("ignore_eos", True),
        ("include_stop_str_in_output", True),
        ("skip_special_tokens", False),
    ],
)
def test_what_asks_for_another_choice_of_tokens_reaches_the_engine(name: str, value: object) -> None:
    body = msgspec.convert({"model": "demo", "input": "x", name: value}, ResponseRequest)
    params = body.chat([]).sampling_params({}, None, None)
    assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value)


def test_stop_and_the_form_reach_the_engine_too() -> None:
    fields = {"model": "demo", "input": "x", "stop": "end", "structured_outputs": {"regex": "a+"}}
    given = msgspec.convert(fields, ResponseRequest).chat([]).sampling_params({}, None, None)
    assert given.stop == ("end",)
    assert given.structured_outputs is not None
    assert given.structured_outputs.regex == "a+"


def test_the_switches_of_the_template_are_in_the_prompt_and_in_its_count(speaker: Speaker) -> None:
    switches = {"chat_template_kwargs": {"enable_thinking": False}}
    with_them = whole(speaker, "x", **switches)["usage"]["input_tokens"]
    assert with_them > whole(speaker, "x")["usage"]["input_tokens"]
    body = {"model": "demo", "input": "hello", **switches}
    counted = speaker.client.post("/v1/responses/input_tokens", json=body).get_json()
    assert counted["input_tokens"] == with_them


@pytest.fixture
def keeping(site: Site, open_client: Any, served_model: Any) -> Callable[..., Any]:
    """A site that stores responses."""
    site.settings = msgspec.structs.replace(site.settings, store_responses=True)
    site.start_engine()
    client = open_client(site, dataclasses.replace(served_model))

    def send(method: str, path: str = "", **fields: object) -> Any:
        body = {"json": {"model": "demo", "max_output_tokens": 2, **fields}} if method == "post" else {}
        return getattr(client, method)(f"/v1/responses{path}", **body)

    return send


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_can_be_had_gone_on_from_and_deleted(
    keeping: Callable[..., Any], stream: bool
) -> None:
    response = keeping("post", input="hello", instructions="brief", stream=stream)
    data = response.data.decode()
    first = msgspec.json.decode(data if not stream else data.strip().rsplit("data: ", 1)[1])
    first = first["response"] if stream else first
    assert first["store"] is True
    assert keeping("get", f"/{first['id']}").get_json() == first
    second = keeping("post", input="and?", previous_response_id=first["id"]).get_json()
    chat = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "w0 w1 "},
        {"role": "user", "content": "and?"},
    ]
    assert second["usage"]["input_tokens"] == keeping("post", input=chat).get_json()["usage"]["input_tokens"]
    assert keeping("delete", f"/{first['id']}").get_json()["deleted"] is True
    for method in ("get", "delete"):
        assert keeping(method, f"/{first['id']}").status_code == 404
    assert keeping("post", input="x", previous_response_id=first["id"]).status_code == 404


def test_instructions_are_for_one_response_and_the_input_s_own_for_all_that_follow(
    keeping: Callable[..., Any],
) -> None:
    told = [{"role": "system", "content": "be kind"}, {"role": "developer", "content": "and brief"}]
    asked = [*told, {"role": "user", "content": "hello"}]
    first = keeping("post", input=asked, instructions="in verse").get_json()
    second = keeping("post", input="and?", previous_response_id=first["id"]).get_json()
    chat = [*asked, {"role": "assistant", "content": "w0 w1 "}, {"role": "user", "content": "and?"}]
    assert second["usage"]["input_tokens"] == keeping("post", input=chat).get_json()["usage"]["input_tokens"]


def test_a_call_that_broke_is_no_part_of_the_conversation(
    site: Site, open_client: Any, served_model: Any, tmp_path: Path
) -> None:
    (tmp_path / "says").write_text('<tool_call>{"name": "weather", "arguments": {"city": "Par')
    site.settings = msgspec.structs.replace(site.settings, store_responses=True)
    site.start_engine("--says", str(tmp_path / "says"))
    template = ChatTemplate(TEMPLATE)
    changes = {"template": template, "template_takes_tools": True, "tool_format": HermesParser}
    client = open_client(site, dataclasses.replace(served_model, **changes))
    body = {"model": "demo", "input": "hello", "tools": [TOOL]}
    stream = client.post("/v1/responses", json={**body, "stream": True}).data.decode()
    first = msgspec.json.decode(stream.strip().rsplit("data: ", 1)[1])["response"]
    assert first["output"][0]["status"] == "incomplete"
    more = {"previous_response_id": first["id"], "input": "and?"}
    second = client.post("/v1/responses", json={**body, **more}).get_json()
    turns = [("user", "hello"), ("assistant", ""), ("user", "and?")]
    chat = {"input": [{"role": role, "content": content} for role, content in turns]}
    told = client.post("/v1/responses", json={**body, **chat}).get_json()
    assert second["usage"]["input_tokens"] == told["usage"]["input_tokens"]


def test_the_site_s_responses_are_looked_through_for_old_ones_once_in_a_while(
    keeping: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps: list[StoredObjects[Any]] = []
    monkeypatch.setattr(StoredObjects, "_sweep_now", lambda store: sweeps.append(store))
    for _ in range(3):
        assert keeping("post", input="hello").status_code == 200
    assert len(sweeps) == 1


def test_a_response_that_the_disk_does_not_take_says_so(
    keeping: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    whole = keeping("post", input="hello")
    told = whole.get_json()["error"]
    assert (whole.status_code, told["code"]) == (503, "storage_full")
    assert "cannot be stored: No space left on device" in told["message"]
    sent = [
        json.loads(line[6:])
        for line in keeping("post", input="hello", stream=True).data.splitlines()
        if line[:5] == b"data:"
    ]
    assert "cannot be stored: No space left on device" in sent[-1]["message"]
    assert [event["sequence_number"] for event in sent] == list(range(len(sent))), "the text came before it"
    assert keeping("post", input="hello", store=False).status_code == 200


ITEMS: list[dict[str, Any]] = [
    {"role": "developer", "content": "brief"},
    {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "sunny"},
    {"role": "assistant", "content": "It is sunny."},
    {"role": "user", "content": "and now?"},
]


def test_what_a_stored_response_was_asked_can_be_paged_through(keeping: Callable[..., Any]) -> None:
    response_id = keeping("post", input=ITEMS).get_json()["id"]
    whole = keeping("get", f"/{response_id}/input_items?order=asc").get_json()
    ResponseItemList.model_validate(whole)
    kinds = [item.get("type", "message") for item in ITEMS]
    assert [item["type"] for item in whole["data"]] == kinds
    assert [part["type"] for item in whole["data"][-2:] for part in item["content"]] == [
        "output_text",
        "input_text",
    ]
    page = keeping("get", f"/{response_id}/input_items?limit=3").get_json()
    rest = keeping("get", f"/{response_id}/input_items?after={page['last_id']}").get_json()
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert page["data"] + rest["data"] == whole["data"][::-1], "newest first, if not said otherwise"
    for wrong in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_1"):
        assert keeping("get", f"/{response_id}/input_items?{wrong}").status_code == 400
    assert keeping("get", "/resp_1/input_items").status_code == 404


def test_a_response_that_has_ended_is_not_cancelled_nor_streamed_again(keeping: Callable[..., Any]) -> None:
    response_id = keeping("post", input="hello").get_json()["id"]
    assert keeping("post", f"/{response_id}/cancel").status_code == 400
    assert keeping("get", f"/{response_id}?stream=true").get_json()["error"]["param"] == "stream"
    assert keeping("get", f"/{response_id}?stream=false").status_code == 200


def test_tokens_of_an_input_are_counted_as_the_response_counts_them(speaker: Speaker) -> None:
    given = {"input": ITEMS, "instructions": "kind", "tools": [TOOL]}
    counted = speaker.client.post("/v1/responses/input_tokens", json={"model": "demo", **given}).get_json()
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == whole(speaker, "x", **given)["usage"]["input_tokens"]
    wrong = speaker.client.post("/v1/responses/input_tokens", json={"model": "demo"})
    assert (wrong.status_code, wrong.get_json()["error"]["param"]) == (400, "input")


def test_what_is_not_to_be_stored_is_not(keeping: Callable[..., Any], site: Site) -> None:
    answer = keeping("post", input="hello", store=False).get_json()
    assert keeping("get", f"/{answer['id']}").status_code == 404
    assert not list(site.settings.paths.stored.rglob("*.json"))
