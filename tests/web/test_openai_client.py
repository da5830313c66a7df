"""The official `openai` client, unchanged, and our own, against the real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from trivet.client import Client
from trivet.errors import EngineLost

if TYPE_CHECKING:
    from conftest import Eventually, Live, Server, Site

    from trivet.client.streams import Stream

MODEL = "demo"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    live.site.start_engine()
    with openai.OpenAI(base_url=f"{live.server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4, seed=1, temperature=0.5)
    assert whole.choices[0].message.content == "w0 w1 w2 w3 "
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 4
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "w0 w1 w2 w3 "
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [4]


def test_chat_logprobs_are_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2, 2]


def test_stream_helper_accumulates_the_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HELLO, stop="w3") as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "w0 w1 w2 "


def test_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2, logprobs=1)
    assert [choice.text for choice in whole.choices] == ["w0 w1 ", "w0 w1 "]
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "w0 w1 w2 "


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).owned_by == "trivet"


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "nothing"}, openai.NotFoundError, "model"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"messages": [{"role": "user", "content": "word " * 900}]}, openai.BadRequestError, "messages"),
    ],
)
def test_failures_are_the_clients_own_classes(
    client: openai.OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})
    assert caught.value.param == param
    assert caught.value.request_id


def test_full_engine_is_a_rate_limit_error(live: Live, client: openai.OpenAI) -> None:
    served = live.serve("--refuse", "429")
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model=served.model, messages=HELLO)


def test_engine_that_dies_under_a_stream_is_an_error_in_the_loop(live: Live, client: openai.OpenAI) -> None:
    served = live.serve("--step-s", "0.02")
    stream = client.chat.completions.create(model=served.model, messages=HELLO, max_tokens=480, stream=True)
    next(iter(stream))
    served.engine.kill()
    with pytest.raises(openai.APIError, match="ended while it held the request"):
        list(stream)


def test_engine_that_dies_under_a_response_is_its_last_event(live: Live, client: openai.OpenAI) -> None:
    served = live.serve("--step-s", "0.02")
    stream = client.responses.create(
        model=served.model, input="hello", max_output_tokens=480, stream=True, timeout=60
    )
    events = [next(stream), next(stream), next(stream)]
    served.engine.kill()
    events += stream
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "error"
    assert (last.code, last.param) == ("engine_lost", None)
    assert "ended while it held the request" in last.message


@pytest.mark.parametrize(
    "begin",
    [
        lambda client, model: client.responses.stream(model, "hello", max_output_tokens=480),
        lambda client, model: client.chat.stream(model, HELLO, max_tokens=480),
        lambda client, model: client.completions.stream(model, "hello", max_tokens=480),
    ],
    ids=["responses", "chat", "completions"],
)
def test_our_own_client_raises_what_ended_a_stream(
    live: Live, begin: Callable[[Client, str], Stream[object]]
) -> None:
    served = live.serve("--step-s", "0.02")
    with Client(live.server.url, "any", max_retries=0) as client, begin(client, served.model) as stream:
        next(stream)
        served.engine.kill()
        with pytest.raises(EngineLost, match="ended while it held the request"):
            list(stream)


def test_wrong_key_is_an_authentication_error_where_keys_are_asked_for(
    site: Site, start_server: Callable[..., Server]
) -> None:
    site.start_engine()
    server = start_server(TRIVET_AUTH="required")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        assert [model.id for model in client.with_options(api_key=site.token).models.list()] == [MODEL]


CALL = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def test_calls_whole_and_by_the_stream_helper(live: Live, client: openai.OpenAI, tmp_path: Path) -> None:
    says = tmp_path / "says"
    says.write_text(CALL)
    served = live.serve("--says", str(says))
    whole = client.chat.completions.create(model=served.model, messages=HELLO, tools=TOOLS)
    choice = whole.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert choice.message.tool_calls is not None
    with client.chat.completions.stream(model=served.model, messages=HELLO, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") >= 2, "tokens that come together are one delta"
    assert final.finish_reason == "tool_calls"
    for calls in (choice.message.tool_calls, final.message.tool_calls or []):
        arguments = [call.function.arguments for call in calls if call.type == "function"]
        assert [json.loads(text)["city"] for text in arguments] == ["Paris", "Rome"]
    back = [
        *HELLO,
        choice.message.model_dump(exclude_none=True),
        *(
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
            for call in choice.message.tool_calls
        ),
    ]
    assert client.chat.completions.create(model=served.model, messages=back, tools=TOOLS).choices


def test_responses_whole_and_by_the_stream_helper(live: Live, client: openai.OpenAI, tmp_path: Path) -> None:
    says = tmp_path / "says"
    says.write_text(CALL)
    served = live.serve("--says", str(says))
    tools: list[Any] = [{"type": "function", "strict": False, **TOOLS[0]["function"]}]
    whole = client.responses.create(model=served.model, input="hello", tools=tools)
    assert whole.output_text == "Let me see."
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]
    with client.responses.stream(model=served.model, input="hello", tools=tools) as stream:
        assert [event.type for event in stream][-1] == "response.completed"
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    with pytest.raises(openai.BadRequestError, match="store_responses"):
        client.responses.create(model=served.model, input="hello", store=True)


def test_a_file_becomes_a_batch_becomes_a_file(
    live: Live, client: openai.OpenAI, eventually: Eventually
) -> None:
    served = live.serve()
    lines = [
        {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": served.model, "messages": HELLO, "max_tokens": 2, "user": "x" * 200_000},
        }
        for number in range(50)  # 10 MB: more than a request's body may have elsewhere
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    assert file.bytes == len(data)
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    eventually(lambda: client.batches.retrieve(batch.id).status == "completed", what="the batch has ended")
    done = client.batches.retrieve(batch.id)
    assert done.output_file_id is not None
    rows = [json.loads(row) for row in client.files.content(done.output_file_id).text.splitlines()]
    assert [row["custom_id"] for row in rows] == [line["custom_id"] for line in lines]
    assert rows[0]["response"]["body"]["choices"][0]["message"]["content"] == "w0 w1 "
    assert [one.id for one in client.batches.list()] == [batch.id]
    assert client.files.delete(file.id).deleted
