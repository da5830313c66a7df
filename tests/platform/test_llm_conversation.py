"""A conversation on SmolLM2 in float32: what it finds in the prefix cache, and that nobody can tell."""

from __future__ import annotations

import pytest

from trivet import LLM, SamplingParams
from trivet.demo_model import find_demo_model
from trivet.llm import RequestOutput

SYSTEM = "You are a patient teacher of chemistry. Answer in one short sentence. " * 4
QUESTIONS = ("Which metal is heaviest?", "And which is lightest?", "Why do metals shine?")
BLOCK = 16


def num_common(one: list[int], other: list[int]) -> int:
    """Tokens with which both begin."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def talk(llm: LLM) -> list[RequestOutput]:
    """Each turn sends back all that was said before."""
    messages, turns = [{"role": "system", "content": SYSTEM}], []
    params = SamplingParams(temperature=0.0, max_tokens=20, logprobs=0)
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        (turn,) = llm.chat(messages, params, use_tqdm=False)
        turns.append(turn)
        messages.append({"role": "assistant", "content": turn.outputs[0].text})
    return turns


def test_a_conversation_hits_what_it_repeats_and_is_the_same_cold() -> None:
    settings = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 4, "block_size": BLOCK}
    with LLM(find_demo_model(), **settings) as llm:
        hot = talk(llm)
        known: list[int] = []
        for turn in hot:
            assert turn.num_cached_tokens == num_common(known, turn.prompt_token_ids) // BLOCK * BLOCK
            known = [*turn.prompt_token_ids, *turn.outputs[0].token_ids[:-1]]
        assert hot[2].num_cached_tokens > 0.6 * len(hot[2].prompt_token_ids)
        for turn in hot:
            llm.reset_prefix_cache()
            prompt = {"prompt_token_ids": turn.prompt_token_ids}
            (cold,) = llm.generate(
                [prompt], SamplingParams(temperature=0.0, max_tokens=20, logprobs=0), use_tqdm=False
            )
            assert cold.num_cached_tokens == 0
            assert cold.outputs[0].token_ids == turn.outputs[0].token_ids
            drift = len(turn.outputs[0].token_ids) * 1e-4
            expected = pytest.approx(turn.outputs[0].cumulative_logprob, abs=drift)
            assert cold.outputs[0].cumulative_logprob == expected
