"""The forms of prompts and of what goes with each: those that are taken, and a sentence for the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trivet.errors import RequestError
from trivet.prompt_forms import as_prompts, params_per_prompt, priority_per_prompt, text_and_ids
from trivet.sampling_params import SamplingParams


def read(given: Any) -> list[tuple[str | None, list[int] | None]]:
    return [text_and_ids(prompt) for prompt in as_prompts(given)]


def test_text_and_ids_are_found_in_every_form() -> None:
    assert read("a") == read({"prompt": "a"}) == read(np.array(["a"])) == [("a", None)]
    assert read([1, 2]) == read((1, 2)) == read([[1, 2]]) == read(np.array([1, 2])) == [(None, [1, 2])]
    assert read({"prompt": "a", "prompt_token_ids": [1]}) == [("a", [1])]
    assert read(["a", [1], {"prompt": "b"}]) == [("a", None), (None, [1]), ("b", None)]
    assert read([]) == []


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (np.array([1.0, 2.0]), "token id 1.0 of type float"),
        ([3, 2.5], "token id 2.5 of type float"),
        ([[3, None]], "token id None of type NoneType"),
        ([["a", "b"]], "token id 'a' of type str"),
        ({"prompt_token_ids": "ab"}, "a prompt is of type str"),
        ({"prompt": 5}, "a prompt is of type int"),
        ({1: 2}, "holds neither 'prompt' nor 'prompt_token_ids'"),
        ([None], "a prompt is of type NoneType"),
        (None, "a prompt is of type NoneType; it must be text, a list of token ids"),
        (7, "a prompt is of type int"),
        ([b"abc"], "a prompt is of type bytes"),
    ],
    ids=repr,
)
def test_what_is_no_prompt_is_told_in_a_sentence(prompt: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read(prompt)
    assert caught.value.param == "prompts"


def test_sampling_params_are_one_for_all_or_one_each() -> None:
    one, other = SamplingParams(), SamplingParams(n=2)
    assert params_per_prompt(one, 2) == [one, one]
    assert params_per_prompt((one, other), 2) == [one, other]


@pytest.mark.parametrize("given", [{"temperature": 0.0}, [{"n": 1}], 5, "x", [None]], ids=repr)
def test_what_is_no_sampling_params_is_told_in_a_sentence(given: Any) -> None:
    with pytest.raises(RequestError, match=r"sampling_params has .* of type .*; give SamplingParams"):
        params_per_prompt(given, 1)


def test_without_priorities_all_have_the_most_urgent() -> None:
    assert priority_per_prompt(None, 3) == [0, 0, 0]
    assert priority_per_prompt(np.array([3, 0, -1]), 3) == [3, 0, -1]


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        ([1, 2], "2 priorities for 1 prompts; give one each"),
        (3, "priority is 3; it must be a list of ints"),
        ([1.5], r"priority is \[1.5\]; its items must be of type int"),
    ],
)
def test_a_wrong_priority_is_named(priority: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        priority_per_prompt(priority, 1)
    assert caught.value.param == "priority"
