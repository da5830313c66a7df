"""Where each token of a completion begins in its text."""

from __future__ import annotations

import pytest

from trivet.messages import TokenLogprob
from trivet.text.detokenizer import IncrementalDetokenizer
from trivet.text.tokenizer import Tokenizer
from trivet_web.api.logprobs import CompletionLists, EchoedPrompt
from trivet_web.models.served_models import ServedModel

TEXT = "I 😀 like 龘 you"  # characters of several tokens each
END = "<|im_end|>"


@pytest.fixture
def tokenizer(served_model: ServedModel) -> Tokenizer:
    return served_model.tokenizer


def entries(tokenizer: Tokenizer, text: str) -> list[TokenLogprob]:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special_tokens=True)
    return [TokenLogprob(token_id, -1.0, 1, []) for token_id in ids]


def begins(tokens: list[str], offsets: list[int], text: str) -> list[bool]:
    """Of the tokens that are whole characters: whether each stands where its offset says."""
    whole = [(token, at) for token, at in zip(tokens, offsets, strict=True) if "\ufffd" not in token]
    return [text[at : at + len(token)] == token for token, at in whole]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_offsets_count_characters_also_in_parts(tokenizer: Tokenizer, size: int) -> None:
    lists = CompletionLists(tokenizer, 0, IncrementalDetokenizer(tokenizer))
    drawn = entries(tokenizer, TEXT)
    parts = [lists.of(drawn[start : start + size]) for start in range(0, len(drawn), size)]
    tokens = [token for part in parts for token in part.tokens]
    offsets = [offset for part in parts for offset in part.text_offset]
    found = begins(tokens, offsets, TEXT)
    assert all(found)
    assert len(found) == 3
    assert offsets == sorted(offsets)


@pytest.mark.parametrize(("skips", "room"), [(True, 0), (False, len(END))])
def test_a_special_token_takes_the_room_that_it_has_in_the_text(
    tokenizer: Tokenizer, skips: bool, room: int
) -> None:
    lists = CompletionLists(tokenizer, 0, IncrementalDetokenizer(tokenizer, (), skips))
    offsets = lists.of(entries(tokenizer, f"a{END}b")).text_offset
    assert offsets == [0, 1, 1 + room]


def test_a_completion_begins_behind_its_echoed_prompt(tokenizer: Tokenizer) -> None:
    prompt = f"{TEXT}{END}"
    first, *others = entries(tokenizer, prompt)
    lists = CompletionLists(tokenizer, 0, IncrementalDetokenizer(tokenizer))
    echoed = EchoedPrompt(prompt, first.token_id, others)
    shown = lists.of(entries(tokenizer, TEXT), echoed)
    assert all(begins(shown.tokens, shown.text_offset, prompt + TEXT))
    assert shown.text_offset[1 + len(others)] == len(prompt)
    assert shown.top_logprobs[0] is None
