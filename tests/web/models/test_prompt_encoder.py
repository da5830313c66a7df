"""What a prompt may cost before it is refused, and that large ones take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from trivet.errors import ContextLengthExceeded, RequestTooLarge
from trivet_web.models.prompt_encoder import LARGE_BYTES, MAX_LIST_BYTES, PromptEncoder

if TYPE_CHECKING:
    from flask.testing import FlaskClient

    from trivet_web.models.served_models import ServedModel

CONTEXT = 64


@pytest.fixture
def most(served_model: ServedModel) -> int:
    """Bytes that 64 of the longest tokens have."""
    return CONTEXT * served_model.tokenizer.max_token_bytes


class Watched:
    """A tokenizer of one byte a token that says when it is used."""

    max_token_bytes = 1

    def __init__(self, on_encode: Callable[[str], None]) -> None:
        self._on_encode = on_encode

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        self._on_encode(texts[0])
        return [[0] * len(text) for text in texts]


def encode(
    model: ServedModel, *texts: str, encoder: PromptEncoder | None = None, context: int = CONTEXT
) -> Any:
    return (encoder or PromptEncoder()).encode(model, texts, context, "prompt", add_special_tokens=False)


def test_longest_token_is_that_of_the_vocabulary(served_model: ServedModel) -> None:
    tokenizer = served_model.tokenizer
    assert tokenizer.max_token_bytes == max(
        len(tokenizer.token_bytes[i]) for i in range(tokenizer.vocab_size)
    )


def test_text_of_the_longest_tokens_that_just_fits_is_read(served_model: ServedModel) -> None:
    tokenizer = served_model.tokenizer
    longest = max(range(tokenizer.vocab_size), key=lambda i: len(tokenizer.token_bytes[i]))
    text = tokenizer.decode([longest]) * CONTEXT
    (ids,) = encode(served_model, text)
    assert tokenizer.decode(ids) == text


def test_text_that_cannot_fit_is_refused_by_its_bytes_and_never_tokenised(
    served_model: ServedModel, most: int
) -> None:
    def fail(text: str) -> None:
        raise AssertionError("it was tokenised")

    model = replace(served_model, tokenizer=Watched(fail))  # type: ignore[arg-type]
    with pytest.raises(ContextLengthExceeded, match=f"{CONTEXT + 1} bytes.*at most {CONTEXT}") as refused:
        encode(model, "é" * (CONTEXT // 2) + "x")
    assert refused.value.param == "prompt"
    with pytest.raises(ContextLengthExceeded) as refused:
        encode(served_model, "short", "x" * (most + 1))
    assert refused.value.param == "prompt[1]"


def test_prompts_of_a_list_have_a_budget_together(served_model: ServedModel, most: int) -> None:
    text = "word " * (most // 5)
    count = MAX_LIST_BYTES // len(text) + 1
    with pytest.raises(RequestTooLarge, match=f"{count} prompts have {count * len(text)} bytes together"):
        encode(served_model, *[text] * count)


def test_large_texts_take_turns_and_small_ones_go_on(served_model: ServedModel) -> None:
    encoder, large = PromptEncoder(), "x" * (LARGE_BYTES + 1)
    begun, may_end = threading.Event(), threading.Event()

    def on_encode(text: str) -> None:
        if text == large:
            begun.set()
            assert may_end.wait(20)

    model = replace(served_model, tokenizer=Watched(on_encode))  # type: ignore[arg-type]
    done: list[str] = []

    def work(name: str, text: str) -> None:
        encode(model, text, encoder=encoder, context=1 << 20)
        done.append(name)

    first = threading.Thread(target=work, args=("first", large))
    second = threading.Thread(target=work, args=("second", "y" * (LARGE_BYTES + 1)))
    first.start()
    assert begun.wait(20)
    second.start()
    work("small", "x")
    second.join(0.2)
    assert done == ["small"]
    may_end.set()
    first.join(20)
    second.join(20)
    assert done == ["small", "first", "second"]


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/chat/completions", "messages", [{"role": "user", "content": "word " * 1_000_000}]),
        ("/v1/completions", "prompt", "word " * 1_000_000),
    ],
)
def test_both_ways_in_refuse_a_huge_prompt_by_its_bytes(
    client: FlaskClient, path: str, field: str, value: object
) -> None:
    response = client.post(path, json={"model": "demo", "max_tokens": 3, field: value})
    error = response.get_json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", field)
    assert "bytes" in error["message"]
