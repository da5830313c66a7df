"""POST /v1/embeddings, with a real engine's loop on the null backend."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from trivet import LLM
from trivet.demo_model import find_demo_model
from trivet_web.batch.forms import Request
from trivet_web.batch.offline_site import OfflineSite

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(find_demo_model(), backend="null", max_model_len=64) as llm:
        yield llm


@pytest.fixture(scope="module")
def ask(llm: LLM) -> Iterator[Ask]:
    site = OfflineSite(llm, ["m"], num_threads=2)

    def post(**body: object) -> tuple[int, Any]:
        data = json.dumps({"model": "m", **body}).encode()
        answered = site.answer(Request("/v1/embeddings", data))
        return answered.status, json.loads(answered.body)

    yield post
    site.close()


@pytest.mark.parametrize(
    ("given", "count", "tokens"),
    [("hello", 1, 1), (["a", "b", "c"], 3, 3), ([5, 6, 7], 1, 3), ([[5, 6], [7]], 2, 3)],
)
def test_inputs_of_every_form_give_a_vector_each(ask: Ask, given: object, count: int, tokens: int) -> None:
    status, answer = ask(input=given)
    assert status == 200
    parsed = CreateEmbeddingResponse.model_validate(answer)
    assert [one.index for one in parsed.data] == list(range(count))
    assert all(len(one.embedding) == 576 for one in parsed.data)
    assert parsed.usage.prompt_tokens == parsed.usage.total_tokens == tokens
    assert parsed.model == "m"
    np.testing.assert_allclose([np.linalg.norm(one.embedding) for one in parsed.data], 1, rtol=1e-5)


def test_base64_holds_the_same_numbers(ask: Ask) -> None:
    _, plain = ask(input="hello")
    _, coded = ask(input="hello", encoding_format="base64")
    numbers = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(numbers, np.array(plain["data"][0]["embedding"], np.float32))


def test_wishes_reach_the_engine(ask: Ask) -> None:
    _, answer = ask(input="one two three", dimensions=3, pooling="mean", normalize=False)
    vector = answer["data"][0]["embedding"]
    assert len(vector) == 3
    assert np.linalg.norm(vector) != pytest.approx(1, abs=1e-3)


def test_a_timeout_ends_a_request_that_waits(ask: Ask) -> None:
    assert ask(input="x", timeout=60)[0] == 200
    status, answer = ask(input=["x", "y"], timeout=1e-6)
    assert (status, answer["error"]["code"]) == (503, "deadline_passed")


def test_a_text_may_fill_the_context(ask: Ask) -> None:
    assert ask(input=[5] * 64)[0] == 200


def test_ollamas_clients_get_the_start_of_a_text_that_is_too_long(llm: LLM) -> None:
    site = OfflineSite(llm, ["m"], num_threads=2)

    def vector(text: str, **fields: object) -> Any:
        data = json.dumps({"model": "m", "input": text, **fields}).encode()
        answered = site.answer(Request("/api/embed", data))
        told = json.loads(answered.body)
        return told["embeddings"][0] if answered.status == 200 else told["error"]

    try:
        text = "one two three four five six seven eight " * 10
        assert "input has 8" in vector(text), "it is not cut unasked"
        first, other_end, other_start = (
            vector(one, truncate=True) for one in (f"{text}end", f"{text}other end", f"other start {text}")
        )
    finally:
        site.close()
    assert first == other_end
    assert first != other_start


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "input is missing"),
        ({"input": []}, "input", "input is an empty list"),
        ({"input": ""}, "input", "input has no tokens"),
        ({"input": ["a", [5]]}, "input", "input mixes"),
        ({"input": ["a"] * 2049}, "input", "2049 items"),
        ({"input": ["a"] * 100, "cache_salt": "s" * 100_000}, "input", "100 sequences are asked for"),
        ({"input": [[5], [70_000]]}, "input[1]", "token id 70000"),
        ({"input": "x", "dimensions": 577}, "dimensions", "between 1 and 576"),
        ({"input": "x", "pooling": "cls"}, "pooling", "one of last, mean"),
        ({"input": "x", "timeout": 0}, "timeout", "timeout is 0.0"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format", "encoding_format is wrong"),
        ({"input": [5] * 65}, "input", "input has 65 tokens and the context holds 64"),
        ({"input": [[5], [5] * 65]}, "input[1]", "input[1] has 65 tokens and the context holds 64"),
    ],
)
def test_a_wrong_request_is_named(ask: Ask, body: dict[str, Any], param: str | None, words: str) -> None:
    status, answer = ask(**body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert answer["error"]["param"] == param
