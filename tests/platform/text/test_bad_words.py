"""Bad words as tokens."""

from __future__ import annotations

from trivet.text.bad_words import bad_word_ids
from trivet.text.tokenizer import Tokenizer


def test_a_word_is_spelled_with_and_without_a_space_before_it(smollm: Tokenizer) -> None:
    found = bad_word_ids(smollm, ["cat"])
    assert [smollm.decode(list(ids), skip_special_tokens=False) for ids in found] == ["cat", " cat"]


def test_words_are_spelled_once_for_all_completions_of_a_prompt(smollm: Tokenizer) -> None:
    words = ["red", "green"]
    first, second = bad_word_ids(smollm, words), bad_word_ids(smollm, list(words))
    assert first == second
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_a_list_that_was_handed_out_is_the_callers(smollm: Tokenizer) -> None:
    bad_word_ids(smollm, ["blue"]).clear()
    assert bad_word_ids(smollm, ["blue"])
