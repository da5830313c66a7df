"""A real chat through every layer, by the official OpenAI client."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

QUESTION = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def sdk(shared_site: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{shared_site.base_url}/v1", api_key="unused", max_retries=0)


def test_demo_once_streams_an_answer_and_leaves_no_process(site: Any) -> None:
    done = site.run("demo", "--once")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout or len(done.stdout.split()) > 20
    assert re.search(r"TTFT|time to first token", done.stdout)
    assert re.search(r"[\d.]+ tokens/s", done.stdout)
    assert not site.processes()
    site.serve()
    with site.client() as client:
        assert client.deployments.get("smollm2").desired == "stopped"


def test_a_model_of_another_site_is_launched_by_its_address(
    site: Any, shared_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVET_PRIVATE_SOURCES", "true")
    site.serve()
    with shared_site.client() as client:
        deployed = client.deployments.get("smol")
        name = client.models.verify(
            f"{deployed.model}:{deployed.version}"
        ).version  # others take what was read
    source = f"trivet:{shared_site.base_url}/{name}"
    key_file = str(shared_site.home / "run" / "token")
    done = site.run("launch", source, "--key-file", key_file, "--backend", "null")
    assert done.returncode == 0, done.stderr
    with site.client() as client:
        (deployment,) = client.deployments.list()
        assert client.models.version(deployment.model).source


def test_the_answer_is_right(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="smol",
        messages=QUESTION,
        temperature=0,
        max_tokens=32,  # type: ignore[arg-type]  # plain dicts
    )
    choice = answer.choices[0]
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_a_stream_joins_to_the_whole_answer_with_usage_last(sdk: openai.OpenAI) -> None:
    chunks = list(
        sdk.chat.completions.create(
            model="smol",
            messages=QUESTION,  # type: ignore[arg-type]  # plain dicts
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "The capital of France is Paris."
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []


def test_completions_and_models_answer(sdk: openai.OpenAI) -> None:
    done = sdk.completions.create(
        model="smol", prompt="The capital of France is", temperature=0, max_tokens=2
    )
    assert done.choices[0].text.strip().startswith("Paris")
    assert {model.id for model in sdk.models.list()} == {"smol", "null"}


def test_the_same_greedy_request_is_the_same_alone_and_in_a_crowd(sdk: openai.OpenAI) -> None:
    def ask(content: str) -> str | None:
        answer = sdk.chat.completions.create(
            model="null", messages=[{"role": "user", "content": content}], temperature=0, max_tokens=40
        )
        return answer.choices[0].message.content

    alone = ask("Hello")
    with ThreadPoolExecutor(32) as pool:
        crowd = list(pool.map(ask, ["Hello", *(f"other {n}" for n in range(30)), "Hello"]))
    assert crowd[0] == crowd[-1] == alone


def test_errors_are_openai_errors(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"smol"):
        sdk.chat.completions.create(model="nope", messages=QUESTION)  # type: ignore[arg-type]  # plain dicts
    with pytest.raises(openai.BadRequestError, match=r"max_tokens"):
        sdk.chat.completions.create(model="smol", messages=QUESTION, max_tokens=-1)  # type: ignore[arg-type]  # plain dicts
    with pytest.raises(openai.BadRequestError, match=r"2048"):
        sdk.completions.create(model="smol", prompt="word " * 4000)


def test_the_cli_shows_and_uses_what_runs(shared_site: Any) -> None:
    table = shared_site.run("ps")
    assert table.returncode == 0
    assert re.search(r"smol.*ready", table.stdout)
    greedy = ("--temperature", "0", "--max-tokens", "32")
    said = shared_site.run("chat", "smol", *greedy, "--message", "Name the capital of France.")
    assert said.returncode == 0, said.stderr
    assert "The capital of France is Paris." in said.stdout
