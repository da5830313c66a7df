"""Scores over HTTP are those of `LLM.score`; ranks are by score."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trivet import LLM
from trivet.demo_model import find_demo_model
from trivet_web.batch.forms import Request
from trivet_web.batch.offline_site import OfflineSite

Post = Callable[..., tuple[int, dict[str, Any]]]
QUERY, DOCUMENTS = "capital of France?", ["Paris", "Berlin is in Germany", "the Seine <|im_end|>"]


def open_llm() -> LLM:
    return LLM(find_demo_model(), backend="null", max_model_len=512)


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    site = OfflineSite(open_llm(), ["m"], num_threads=2)

    def send(path: str, **fields: object) -> tuple[int, dict[str, Any]]:
        answered = site.answer(Request(path, json.dumps({"model": "m", **fields}).encode()))
        return answered.status, json.loads(answered.body)

    yield send
    site.close()


@pytest.fixture(scope="module")
def expected() -> list[float]:
    with open_llm() as llm:
        return [output.outputs.score for output in llm.score(QUERY, DOCUMENTS)]


def test_scores_are_those_of_the_library(post: Post, expected: list[float]) -> None:
    status, answer = post("/v1/score", text_1=QUERY, text_2=DOCUMENTS)
    assert status == 200, answer
    assert [entry["score"] for entry in answer["data"]] == pytest.approx(expected)
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
    assert answer["usage"]["total_tokens"] > 100
    _, pairs = post("/v1/score", text_1=[QUERY, "x"], text_2=DOCUMENTS[:2])
    assert pairs["data"][0]["score"] == pytest.approx(expected[0])
    for first, second in (("queries", "documents"), ("data_1", "data_2")):  # vLLM's other names
        _, same = post("/v1/score", **{first: QUERY, second: DOCUMENTS})
        assert same["data"] == answer["data"]
    status, both = post("/v1/score", text_1=QUERY, text_2=DOCUMENTS, data_1=QUERY)
    assert (status, both["error"]["param"]) == (400, "data_1")
    status, half = post("/v1/score", queries=QUERY)
    assert (status, half["error"]["message"]) == (400, "documents is missing; it is required")


def test_documents_are_ranked_by_their_scores(post: Post, expected: list[float]) -> None:
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]
    status, answer = post("/v1/rerank", query=QUERY, documents=documents, top_n=2)
    assert status == 200, answer
    best = sorted(range(3), key=lambda index: -expected[index])[:2]
    assert [entry["index"] for entry in answer["results"]] == best
    assert [entry["document"]["text"] for entry in answer["results"]] == [DOCUMENTS[index] for index in best]
    _, bare = post("/v1/rerank", query=QUERY, documents=documents, return_documents=False)
    assert [set(entry) for entry in bare["results"]] == [{"index", "relevance_score"}] * 3


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ["a"] * 2049}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "word " * 600}, "text_2"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"image": "x"}]}, "documents[0].text"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
    ],
)
def test_what_is_wrong_is_named(post: Post, path: str, fields: dict[str, Any], param: str) -> None:
    status, answer = post(path, **fields)
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_document_that_is_too_long_may_be_cut(post: Post) -> None:
    status, answer = post("/v1/score", text_1="a", text_2="word " * 600, truncate_prompt_tokens=-1)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 511)


@pytest.mark.parametrize("field", ["instruction", "query"])
def test_what_is_too_long_with_every_document_is_refused_before_it_is_put_together(
    post: Post, field: str
) -> None:
    fields = {"query": "a", "documents": ["b"] * 1000, field: "x" * 100_000}
    tracemalloc.start()
    try:
        status, answer = post("/v1/rerank", **fields)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (status, answer["error"]["param"]) == (400, "documents[0]")
    assert peak_bytes < 16 << 20, "the texts together would have 100 MB"
