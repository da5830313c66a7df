"""The engine core on this backend: what a request gets does not depend on how it was scheduled."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract_suite.engine_runs import Outcome, drain, greedy_request, request, run_core, step_core
from trivet.contract_suite.expect import expect_greedy
from trivet.contract_suite.poison import bad_tokens, poisoned
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import log_softmax
from trivet.contract_suite.subject import Subject
from trivet.contract_suite.tiny_models import NUM_TOKENS
from trivet.engine.agreement import bound_of
from trivet.engine.sequence import Sequence
from trivet.errors import ContextLengthExceeded, GenerationError
from trivet.messages import FinishReason
from trivet.sampling_params import SamplingParams


def test_prefix_cache_on_and_off_give_the_same_tokens(subject: Subject) -> None:
    """Prompts that share their beginning, one wave after the other and within a wave."""
    size = subject.block_size
    prefix = random_prompt(2 * size, 1)
    prompts = [[*prefix[: size * (1 + i % 2)], *random_prompt(3 + i, 10 + i)] for i in range(6)]
    tokens = []
    for caching in (True, False):
        with subject.core(core={"enable_prefix_caching": caching}) as core:
            waves = [
                run_core(core, [greedy_request(f"{wave}-{i}", p, 6) for i, p in enumerate(prompts)])
                for wave in range(2)
            ]
            assert (core.load().prefix_hits > 0) == caching
        tokens.append([outcome.token_ids for wave in waves for outcome in wave.values()])
    for i, prompt in enumerate(prompts * 2):
        for run in tokens:
            assert len(run[i]) == 6
            expect_greedy(subject, prompt, run[i])
    if subject.is_exact:
        assert tokens[0] == tokens[1]


def test_a_cached_prefix_gives_the_same_logprobs(subject: Subject) -> None:
    """The same greedy request twice: what the second reads from the cache is what the first computed."""
    prompt = random_prompt(2 * subject.block_size + 5, 1)
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1, ignore_eos=True)
    with subject.core() as core:
        first, second = (run_core(core, [request(name, prompt, params)])[name] for name in ("a", "b"))
        assert core.load().prefix_hits == 2 * subject.block_size
    tolerance = 1e-4 if subject.is_exact else bound_of(subject.dtype)
    for one, other in zip(first.logprobs, second.logprobs, strict=True):
        if one.token_id != other.token_id:
            assert not subject.is_exact
            break  # from here on they are of different texts
        assert other.logprob == pytest.approx(one.logprob, abs=tolerance)


def test_edits_masks_and_scored_prompts_are_the_same_alone_and_together(subject: Subject) -> None:
    """Rows of many kinds in one step: penalties, a mask, scored prompt tokens in chunks, and none of them."""
    allowed = tuple(range(0, NUM_TOKENS, 3))
    wishes = {
        "plain": SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
        "penalties": SamplingParams(
            temperature=0, max_tokens=6, ignore_eos=True, repetition_penalty=1.5, presence_penalty=1.0
        ),
        "mask": SamplingParams(seed=1, max_tokens=6, ignore_eos=True, allowed_token_ids=allowed),
        "bias": SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logit_bias={5: 100.0}),
        "scored": SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=2),
    }
    prompts = {name: random_prompt(20 + 7 * place, place) for place, name in enumerate(wishes)}

    def requests(*names: str) -> list[Sequence]:
        return [request(name, prompts[name], wishes[name]) for name in names]

    with subject.core(max_num_batched_tokens=16, core={"enable_prefix_caching": False}) as core:
        alone = {name: run_core(core, requests(name))[name] for name in wishes}
        together = run_core(core, requests(*wishes))
    tolerance = 1e-4 if subject.is_exact else bound_of(subject.dtype)
    for name in wishes:
        assert len(together[name].token_ids) == 6
        if subject.is_exact:
            assert together[name].token_ids == alone[name].token_ids
    assert set(together["mask"].token_ids) <= set(allowed)
    assert together["bias"].token_ids == [5] * 6
    one, other = alone["scored"].prompt_logprobs, together["scored"].prompt_logprobs
    assert one is not None
    assert other is not None
    assert [entry.token_id for entry in other] == prompts["scored"][1:]
    assert [entry.logprob for entry in other] == pytest.approx([e.logprob for e in one], abs=2 * tolerance)


def test_a_tiny_kv_pool_with_preemption_gives_the_same_tokens(subject: Subject) -> None:
    """Eight requests where two have room: all finish, none is mixed up."""
    size = subject.block_size
    prompts = [random_prompt(size - 3 + i % 3, i) for i in range(8)]
    with subject.core(num_blocks=5, max_model_len=4 * size) as core:
        outcomes = run_core(core, [greedy_request(str(i), p, size + 4) for i, p in enumerate(prompts)])
        assert core.load().num_preemptions > 0, "the pool was not tiny enough"
        assert core.load().kv_usage == 0
    for i, prompt in enumerate(prompts):
        assert len(outcomes[str(i)].token_ids) == size + 4
        expect_greedy(subject, prompt, outcomes[str(i)].token_ids)


def test_an_abort_frees_the_blocks_at_once_and_disturbs_nobody(subject: Subject) -> None:
    """While a step is under way, and before the request has begun."""
    prompts = [random_prompt(20 + i, i) for i in range(5)]
    with subject.core() as core:
        outcomes = {str(i): Outcome() for i in range(5)}
        for i, prompt in enumerate(prompts):
            core.add(greedy_request(str(i), prompt, 12))
        for _ in range(3):
            step_core(core, outcomes)
        assert core.abort("1")
        assert core.abort("3")
        assert not core.abort("3")
        drain(core, outcomes)
        assert core.load().kv_usage == 0
        assert core.load().num_running == 0
    for i in (0, 2, 4):
        assert len(outcomes[str(i)].token_ids) == 12
        expect_greedy(subject, prompts[i], outcomes[str(i)].token_ids)
    assert len(outcomes["1"].token_ids) < 12


def test_a_prompt_gets_the_same_tokens_alone_and_among_32_mixed_requests(subject: Subject) -> None:
    """Greedy and seeded, beside requests of all lengths and settings."""
    prompt = random_prompt(30, 1)
    seeded = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=10, ignore_eos=True)
    with subject.core() as core:
        alone = run_core(core, [greedy_request("greedy", prompt, 10)])
        alone |= run_core(core, [request("seeded", prompt, seeded)])
    with subject.core() as core:
        mixed = run_core(
            core,
            [
                *(_mate(i) for i in range(16)),
                greedy_request("greedy", prompt, 10),
                request("seeded", prompt, seeded),
                *(_mate(i) for i in range(16, 32)),
            ],
        )
        assert core.load().kv_usage == 0
    assert all(outcome.finish_reason is FinishReason.LENGTH for outcome in mixed.values())
    expect_greedy(subject, prompt, alone["greedy"].token_ids)
    expect_greedy(subject, prompt, mixed["greedy"].token_ids)
    if subject.is_exact:
        for name in ("greedy", "seeded"):
            assert mixed[name].token_ids == alone[name].token_ids, name


def _mate(index: int) -> Sequence:
    params = SamplingParams(
        temperature=(0.0, 0.7, 1.3)[index % 3],
        top_k=(0, 5)[index % 2],
        min_p=(0.0, 0.05)[index % 2],
        logprobs=(None, 3)[index % 2],
        max_tokens=3 + index % 9,
        ignore_eos=True,
    )
    return request(f"mate-{index}", random_prompt(1 + 3 * index, 100 + index), params)


def test_a_request_larger_than_all_kv_is_an_error_and_no_hang(subject: Subject) -> None:
    """Refused at once with both numbers; what fits is served next."""
    size = subject.block_size
    with subject.core(num_blocks=4, max_model_len=3 * size) as core:
        with pytest.raises(ContextLengthExceeded, match=rf"{3 * size + 5}\D.*{3 * size}"):
            core.add(greedy_request("large", random_prompt(3 * size + 5, 1), 4))
        assert not core.has_work
        prompt = random_prompt(3 * size - 2, 2)
        outcome = run_core(core, [greedy_request("next", prompt, 50)])["next"]
        assert core.load().kv_usage == 0
    assert outcome.finish_reason is FinishReason.LENGTH
    assert len(outcome.token_ids) == 2
    expect_greedy(subject, prompt, outcome.token_ids)


def test_nan_ends_its_own_request_and_no_other(subject: Subject) -> None:
    """With an error that says so; what it left in the cache poisons nobody."""
    model, options = poisoned(subject)
    healthy = [random_prompt(9 + i, i) for i in range(3)]
    sick = [*random_prompt(6, 50), bad_tokens(subject)[0], *random_prompt(2, 51)]
    with subject.core(model, options=options) as core:
        for wave in range(2):
            outcomes = run_core(
                core,
                [
                    *(greedy_request(f"{wave}-{i}", prompt, 6) for i, prompt in enumerate(healthy)),
                    greedy_request(f"{wave}-sick", sick, 6),
                ],
            )
            failure = outcomes[f"{wave}-sick"].failure
            assert failure is not None
            assert failure.code == GenerationError.code
            for i, prompt in enumerate(healthy):
                assert len(outcomes[f"{wave}-{i}"].token_ids) == 6
                expect_greedy(subject, prompt, outcomes[f"{wave}-{i}"].token_ids, model)
        assert core.load().kv_usage == 0


def test_logprobs_of_a_completion_are_those_of_the_oracle(subject: Subject) -> None:
    """Chosen and top tokens, through prefill in chunks and decode."""
    prompt = random_prompt(70, 3)
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=4, ignore_eos=True)
    with subject.core(max_num_batched_tokens=32) as core:
        outcome = run_core(core, [request("one", prompt, params)])["one"]
    rows = log_softmax(subject.oracle().logits([*prompt, *outcome.token_ids])[len(prompt) - 1 : -1])
    tolerance = bound_of("f32" if subject.is_exact else subject.dtype)
    for row, token, logprob in zip(rows, outcome.token_ids, outcome.logprobs, strict=True):
        assert logprob.token_id == token
        assert logprob.logprob == pytest.approx(row[token], abs=tolerance)
        assert len(logprob.top) == 4
        for top_id, top_logprob in logprob.top:
            assert top_logprob == pytest.approx(row[top_id], abs=tolerance)


def test_rows_of_the_head_without_a_token_are_never_drawn(subject: Subject) -> None:
    """The head is padded, and its padding has the largest logits of all."""
    model = "padded-head"
    prompt = random_prompt(12, 4)
    hot = SamplingParams(temperature=5.0, seed=1, max_tokens=20, min_tokens=20, logprobs=2)
    with subject.core(model, core={"eos_token_ids": (2,)}) as core:
        outcomes = run_core(core, [greedy_request("greedy", prompt, 12), request("hot", prompt, hot)])
    for outcome in outcomes.values():
        assert max(outcome.token_ids) < NUM_TOKENS
        assert len(outcome.token_ids) >= 12
    expect_greedy(subject, prompt, outcomes["greedy"].token_ids, model)
    for logprob in outcomes["hot"].logprobs:
        assert np.isfinite(logprob.logprob)
        assert all(top_id < NUM_TOKENS for top_id, _ in logprob.top)
