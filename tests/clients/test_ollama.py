"""The `ollama` package."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ollama
import pytest

if TYPE_CHECKING:
    from conftest import Server

HELLO = [{"role": "user", "content": "Say hello."}]
FEW = {"num_predict": 8, "temperature": 0}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as made:
        yield made


@pytest.fixture(scope="module")
def manager(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, headers={"Authorization": f"Bearer {server.token}"}) as made:
        yield made


def test_chat_whole_and_streamed_is_the_same(client: ollama.Client) -> None:
    whole = client.chat("smol", HELLO, options=FEW)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 8)
    assert whole.total_duration is not None
    assert whole.total_duration > 0
    parts = list(client.chat("smol:latest", HELLO, stream=True, options=FEW))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_generate_whole_and_streamed_is_the_same(client: ollama.Client) -> None:
    whole = client.generate("smol", "Say hello.", options=FEW)
    parts = list(client.generate("smol", "Say hello.", stream=True, options=FEW))
    assert "".join(part.response or "" for part in parts) == whole.response
    raw = client.generate("smol", "1, 2, 3,", raw=True, options=FEW, logprobs=True)
    assert raw.response
    assert raw.logprobs
    assert len(raw.logprobs) == 8


def test_schema_is_kept_to(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = client.chat("smol", HELLO, format=schema, options={"num_predict": 60, "temperature": 0})
    assert isinstance(json.loads(answer.message.content or "")["n"], int)


def test_python_functions_are_tools(client: ollama.Client) -> None:
    """SmolLM2 calls none; its prompt is longer by what is told of them."""

    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    answer, bare = (client.chat("smol", HELLO, tools=tools, options=FEW) for tools in ([add], []))
    assert answer.prompt_eval_count > bare.prompt_eval_count + 20


def test_vectors_have_length_one_and_differ(client: ollama.Client) -> None:
    one, two = client.embed("smol", ["a cat", "the stock market"]).embeddings
    assert sum(x * x for x in one) == pytest.approx(1.0, abs=1e-3)
    assert one != two
    assert len(client.embeddings("smol", "a cat").embedding) == len(one)


def test_lists_are_read(client: ollama.Client) -> None:
    assert {"smol:latest", "null:latest"} <= {model.model for model in client.list().models}
    loaded = {model.name: model for model in client.ps().models}
    assert loaded["smol:latest"].context_length == 2048
    shown = client.show("smol")
    assert "completion" in (shown.capabilities or [])
    assert shown.template


def test_created_copied_pulled_and_deleted(client: ollama.Client, manager: ollama.Client) -> None:
    made = manager.create(
        "mario", from_="smol", system="You are Mario.", parameters={"num_predict": 3, "temperature": 0}
    )
    assert made.status == "success"
    assert client.chat("mario", HELLO).eval_count == 3
    manager.copy("mario", "luigi")
    assert [step.status for step in manager.pull("luigi", stream=True)][-1] == "success"
    for name in ("mario", "luigi"):
        assert manager.delete(name).status == "success"
    with pytest.raises(ollama.ResponseError, match="trivet launch") as caught:
        manager.pull("llama3")
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="token"):
        client.delete("smol")


def test_failures_are_the_clients_own(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.chat("nothing", HELLO)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.mirostat"):
        list(client.chat("smol", HELLO, stream=True, options={"mirostat": 2}))


def test_curls_form_type_and_its_look_at_the_root(server: Server) -> None:
    data = json.dumps({"model": "smol", "prompt": "hi", "stream": False, "options": FEW}).encode()
    headers: dict[str, Any] = {"Content-Type": "application/x-www-form-urlencoded"}
    asked = urllib.request.Request(f"{server.url}/api/generate", data=data, headers=headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert json.load(answer)["done"] is True
    with urllib.request.urlopen(server.url, timeout=60) as answer:
        assert answer.read() == b"Ollama is running"
