"""The `anthropic` package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

if TYPE_CHECKING:
    from conftest import Server

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
GREEDY = {"temperature": 0}  # of the API, and of this client no more
WEATHER: Any = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key=server.token, max_retries=0) as made:
        yield made


def test_message_whole_and_streamed_is_the_same(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "smol", "max_tokens": 8, "messages": HELLO, "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 8)
    assert whole.content[0].type == "text"
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 8)
    assert final.id.startswith("msg")


def test_forced_call_is_a_block_and_its_result_is_read(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "smol", "max_tokens": 200, "tools": [WEATHER], "extra_body": GREEDY}
    choice = {"type": "tool", "name": "weather"}
    message = client.messages.create(**asked, messages=HELLO, tool_choice=choice)
    (call,) = message.content
    assert (message.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert isinstance(call.input["city"], str)
    with client.messages.stream(**asked, messages=HELLO, tool_choice=choice) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = [*HELLO, message.to_param(), {"role": "user", "content": [result]}]
    assert client.messages.create(**asked, messages=turns).usage.input_tokens > 20


def test_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    counting = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, 3, 4,"}]
    message = client.messages.create(
        model="smol", max_tokens=60, messages=counting, stop_sequences=["5", "6", "7"], extra_body=GREEDY
    )
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence in ("5", "6", "7")


def test_models_are_listed_page_by_page(client: anthropic.Anthropic) -> None:
    listed = {model.id: model for model in client.models.list(limit=1)}
    assert {"smol", "null"} <= listed.keys()
    assert client.models.retrieve("smol").created_at == listed["smol"].created_at
    assert listed["smol"].type == "model"


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="smol", messages=HELLO, system="Be brief.")
    message = client.messages.create(model="null", max_tokens=1, messages=HELLO, system="Be brief.")
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_failures_are_the_clients_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nothing") as caught:
        client.messages.create(model="nothing", max_tokens=1, messages=HELLO)
    assert caught.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="does not think"):
        client.messages.create(
            model="smol", max_tokens=2000, messages=HELLO, thinking={"type": "enabled", "budget_tokens": 1024}
        )
