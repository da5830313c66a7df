"""Sampling at the ends of what is allowed, on the null backend: each answers, and none with an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trivet import LLM, SamplingParams
from trivet.demo_model import find_demo_model


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(find_demo_model(), backend="null") as llm:
        yield llm


def test_without_a_limit_or_an_end_a_completion_fills_the_context() -> None:
    wish = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    with LLM(find_demo_model(), backend="null", max_model_len=200) as llm:
        for count in (1, 100, 199):
            (output,) = llm.generate([5] * count, wish, use_tqdm=False)
            assert len(output.outputs[0].token_ids) == 200 - count
            assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("length", None)


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": 1e-300},
        {"temperature": 1e300},
        {"temperature": 1e-38, "logit_bias": {5: 100.0, 6: 100.0}},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": 1e-300, "temperature": 1e-300, "presence_penalty": 2.0},
        {"top_k": 2**40},
        {"top_p": 5e-324, "top_k": 3},
        {"min_p": 5e-324},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"stop_token_ids": [2**40, 2**70], "min_tokens": 2},
        {"stop": "\ud800", "bad_words": ["\ud800"]},
    ],
    ids=str,
)
def test_values_at_the_ends_of_their_ranges_are_carried_out(llm: LLM, wish: dict[str, Any]) -> None:
    params = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, "logprobs": 1, **wish})
    (output,) = llm.generate("Hello Hello", params, use_tqdm=False)
    assert output.error is None
    assert len(output.outputs[0].token_ids) == 4
    if wish.get("temperature") == 1e-300 and len(wish) == 1:
        greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        (expected,) = llm.generate("Hello Hello", greedy, use_tqdm=False)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
