"""The `openai` package against SmolLM2, and against the null backend where the text does not matter."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import openai
import pydantic
import pytest

if TYPE_CHECKING:
    from conftest import Server

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0) as made:
        yield made


def test_chat_whole_streamed_and_async_is_the_same(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": HELLO, "temperature": 0, "max_completion_tokens": 5}
    whole = client.chat.completions.create(**asked)
    assert whole.usage is not None
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 5)
    options: Any = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options=options)
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    )
    assert {chunk.usage for chunk in chunks} == {None}
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 5

    async def other() -> str | None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.token) as asking:
            answers = [asking.chat.completions.create(**asked) for _ in range(3)]
            (text,) = {one.choices[0].message.content for one in await asyncio.gather(*answers)}
            return text

    assert asyncio.run(other()) == whole.choices[0].message.content


def test_a_named_tool_streamed_has_one_name_one_reason_and_arguments_that_parse(
    client: openai.OpenAI,
) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": HELLO, "tools": [WEATHER], "max_tokens": 200}
    chunks = list(client.chat.completions.create(**asked, tool_choice=NAMED, stream=True))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert [one.finish_reason for one in choices if one.finish_reason] == ["tool_calls"]
    calls = [call for one in choices for call in one.delta.tool_calls or []]
    assert len(calls) > 1
    assert [bool(call.id and call.function and call.function.name) for call in calls] == [
        True,
        *[False] * (len(calls) - 1),
    ]
    arguments = json.loads("".join(call.function.arguments or "" for call in calls if call.function))
    assert set(arguments) == {"city", "days"}


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    millions: int


def test_an_answer_is_parsed_into_a_class(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smol", "messages": HELLO, "temperature": 0, "max_tokens": 100}
    parsed = client.chat.completions.parse(**asked, response_format=City).choices[0].message.parsed
    assert isinstance(parsed, City)
    answer = client.responses.parse(
        model="smol", input="Name a city.", text_format=City, temperature=0, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, City)


def test_fields_of_vllm_are_carried_out(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        return client.chat.completions.create(
            model="smol", messages=HELLO, temperature=0, max_tokens=16, extra_body=fields
        ).choices[0]

    assert ask(structured_outputs={"choice": ["yes", "no"]}).message.content in ("yes", "no")
    assert re.fullmatch("[a-c]{3}", ask(guided_regex="[a-c]{3}").message.content)
    free = ask(logprobs=True)
    first = [one.token for one in free.logprobs.content]
    ids = tokens_of(client, first[0])
    assert ask(stop_token_ids=ids).finish_reason == "stop", "the first token ends it"
    assert ask(stop_token_ids=ids, min_tokens=16).finish_reason == "length"
    assert ask(bad_words=[first[0]]).message.content != free.message.content
    allowed = ask(allowed_token_ids=ids, logprobs=True, ignore_eos=True).logprobs.content
    assert {one.token for one in allowed} == {first[0]}
    with pytest.raises(openai.BadRequestError, match="use_beam_search"):
        ask(use_beam_search=True)


def test_completions_of_every_form_of_prompt(client: openai.OpenAI) -> None:
    for prompt, count in (("a b", 1), (["a", "b"], 2), ([10, 11], 1), ([[10], [11, 12]], 2)):
        answer = client.completions.create(model="smol", prompt=prompt, max_tokens=2, temperature=0, n=2)
        assert len(answer.choices) == 2 * count
    echoed = client.completions.create(
        model="smol", prompt="1, 2,", max_tokens=2, echo=True, logprobs=1, temperature=0
    ).choices[0]
    assert echoed.text.startswith("1, 2,")
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    assert "".join(echoed.logprobs.tokens or []) == echoed.text


def test_responses_have_logprobs_counts_and_events(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "smol", "input": HELLO, "temperature": 0, "max_output_tokens": 8}
    include: Any = ["message.output_text.logprobs"]
    whole = client.responses.create(**asked, include=include, top_logprobs=2)
    part: Any = whole.output[0].content[0]  # type: ignore[union-attr,index]
    assert "".join(one.token for one in part.logprobs) == whole.output_text
    with client.responses.stream(**asked, include=include) as stream:
        deltas = [event for event in stream if event.type == "response.output_text.delta"]
    assert "".join(one.token for event in deltas for one in event.logprobs) == whole.output_text
    assert whole.usage is not None
    counted = client.responses.input_tokens.count(model="smol", input=HELLO)
    assert counted.input_tokens == whole.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="store_responses"):
        client.responses.create(**asked, previous_response_id="resp_1")


def test_vectors_of_texts_and_tokens(client: openai.OpenAI) -> None:
    one, two = client.embeddings.create(model="smol", input=["a cat", "the stock market"]).data
    assert sum(x * x for x in one.embedding) == pytest.approx(1.0, abs=1e-3)
    assert one.embedding != two.embedding
    assert len(client.embeddings.create(model="smol", input=[10, 11], dimensions=8).data[0].embedding) == 8


def test_a_batch_is_answered(client: openai.OpenAI) -> None:
    body = {"model": "null", "messages": HELLO, "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    latest_s = time.monotonic() + 60
    while (done := client.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < latest_s, done
        time.sleep(0.05)
    assert done.output_file_id is not None
    answered = json.loads(client.files.content(done.output_file_id).text)
    assert answered["response"]["body"]["usage"]["completion_tokens"] == 2


def test_a_client_that_closes_ends_its_generation(client: openai.OpenAI, server: Server) -> None:
    stream = client.chat.completions.create(
        model="smol", messages=HELLO, max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    for _, _ in zip(range(3), stream, strict=False):
        pass
    _wait_for(server, running=1)
    stream.close()
    _wait_for(server, running=0)


def test_a_client_that_closes_before_a_whole_answer_ends_its_generation(server: Server) -> None:
    body = {"model": "smol", "messages": HELLO, "max_tokens": 1900, "ignore_eos": True}
    place = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    _wait_for(server, running=1)
    connection.close()
    _wait_for(server, running=0)


def _wait_for(server: Server, running: float) -> None:
    """And for the blocks: they are held while it runs, and free after it."""
    latest_s = time.monotonic() + 20
    while True:
        found = _gauge(server, "num_requests_running"), _gauge(server, "kv_cache_usage_perc")
        if found[0] == running and (found[1] > 0) == (running > 0):
            return
        assert time.monotonic() < latest_s, found
        time.sleep(0.05)


def _gauge(server: Server, name: str) -> float:
    """Of the model "smol"."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    values = re.findall(rf'^trivet:{name}\{{[^}}]*"smol"[^}}]*\}} ([0-9.e+-]+)', text, re.MULTILINE)
    assert values, text
    return sum(map(float, values))


def tokens_of(client: openai.OpenAI, text: str) -> list[int]:
    url = f"{str(client.base_url).removesuffix('/v1/')}/tokenize"
    data = json.dumps({"model": "smol", "prompt": text, "add_special_tokens": False}).encode()
    with urllib.request.urlopen(url, data=data, timeout=60) as answer:
        return list(json.loads(answer.read())["tokens"])


def test_failures_are_the_clients_own(client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> None:
        client.chat.completions.create(**{"model": "smol", "messages": HELLO, "max_tokens": 2, **fields})

    with pytest.raises(openai.NotFoundError, match="null") as caught:
        ask(model="nothing")
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError, match="temperature is -1") as wrong:
        ask(temperature=-1)
    assert (wrong.value.param, wrong.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="2048"):
        ask(messages=[{"role": "user", "content": "word " * 4000}])
