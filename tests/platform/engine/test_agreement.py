"""Agreement of teacher-forced scores, in numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trivet.contract import MemoryPlan, Runner, RunnerConfig
from trivet.engine.agreement import BOUNDS, Scores, bound_of, compare, score_prompts
from trivet.errors import DoesNotFit
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.weights.index import WeightIndex
from trivet_null.backend import NullBackend


def scores(num_tokens: int = 20, seed: int = 0) -> Scores:
    generator = np.random.default_rng(seed)
    return Scores(
        -generator.random(num_tokens, np.float32) * 5,
        generator.integers(0, 50, num_tokens).astype(np.int32),
        generator.random(num_tokens, np.float32) * 4,
    )


def test_scores_of_logits_are_those_of_the_next_tokens() -> None:
    probabilities = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.2, 0.6, 0.2]])
    found = Scores.of_logits(np.log(probabilities) + 7, [9, 1, 2])
    assert np.exp(found.logprobs).tolist() == pytest.approx([0.3, 0.7])
    assert found.top_ids.tolist() == [0, 2]
    assert found.margins.tolist() == pytest.approx([np.log(0.5 / 0.3), np.log(0.7 / 0.2)], rel=1e-5)


def test_equal_scores_agree_in_every_dtype() -> None:
    for dtype in BOUNDS:
        outcome = compare(scores(), scores(), dtype)
        assert outcome.agrees
        assert (outcome.num_tokens, outcome.max_error, outcome.num_top1_equal) == (20, 0.0, 20)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_one_logprob_beyond_the_bound_disagrees(dtype: str) -> None:
    reference, measured = scores(), scores()
    measured.logprobs[7] += bound_of(dtype) * 0.9
    assert compare(reference, measured, dtype).agrees
    measured.logprobs[7] += bound_of(dtype) * 0.2
    assert not compare(reference, measured, dtype).agrees


def test_another_first_choice_counts_only_where_the_reference_is_clear() -> None:
    reference = scores()
    for margin, agrees in ((1.9 * BOUNDS["bf16"], True), (2.1 * BOUNDS["bf16"], False)):
        reference.margins[3] = margin
        measured = replace(reference, top_ids=reference.top_ids.copy())
        measured.top_ids[3] += 1
        outcome = compare(reference, measured, "bf16")
        assert outcome.agrees == agrees
        assert outcome.num_top1_equal == 19


def test_float32_has_to_make_the_same_choice_however_close_it_is() -> None:
    reference = scores()
    reference.margins[3] = 1e-4
    measured = replace(reference, top_ids=reference.top_ids.copy())
    measured.top_ids[3] += 1
    assert not compare(reference, measured, "f32").agrees


def test_a_score_that_is_not_a_number_disagrees() -> None:
    measured = scores()
    measured.logprobs[0] = np.nan
    outcome = compare(scores(), measured, "bf16")
    assert not outcome.agrees
    assert outcome.max_error == np.inf


def test_the_outcome_reads_as_a_sentence_with_its_numbers() -> None:
    measured = scores()
    measured.logprobs[0] += 0.75
    text = str(compare(scores(), measured, "bf16"))
    assert text.startswith("disagrees on 20 tokens: logprob error at most 0.75")
    assert "bound 0.5" in text


def test_a_quantised_weight_format_has_the_bound_of_bf16() -> None:
    assert bound_of("q4_k") == BOUNDS["bf16"]


def launched(*, max_num_batched_tokens: int) -> tuple[Runner, MemoryPlan, ModelSpec]:
    attention = Attention(num_heads=2, num_kv_heads=1, head_dim=8, scale=0.35, rope=Rope(dim=8))
    layer = Layer(attention, MLP(32))
    spec = ModelSpec("LlamaForCausalLM", 50, 50, 16, 64, (layer,), (0,), Norm())
    backend, weights = NullBackend(), WeightIndex(())
    config = RunnerConfig(block_size=4, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=1)
    devices = backend.probe(1.0)
    plan = backend.plan(spec, weights, config, devices)
    runner = backend.create_runner(spec, config, plan, devices)
    runner.load(weights, lambda done, total: None)
    runner.allocate_kv()
    runner.warm_up()
    return runner, plan, spec


@pytest.mark.parametrize("budget", [3, 5, 64])
def test_prompts_are_scored_in_chunks_of_the_token_budget(budget: int) -> None:
    runner, plan, spec = launched(max_num_batched_tokens=budget)
    prompts = [[3, 4], [5, 6, 7, 8, 9, 10], list(range(3, 43))]
    measured = score_prompts(runner, plan, prompts)
    wanted = Scores.join(
        [Scores.of_logits(NullBackend().reference_logits(spec, prompt), prompt) for prompt in prompts]
    )
    outcome = compare(wanted, measured, "f32")
    assert outcome.agrees
    assert outcome.num_tokens == 1 + 5 + 39
    runner.close()


def test_a_prompt_longer_than_the_plan_is_refused_with_both_numbers() -> None:
    runner, plan, _ = launched(max_num_batched_tokens=64)
    with pytest.raises(DoesNotFit, match=r"65 tokens .* holds 64"):
        score_prompts(runner, plan, [[3] * 65])
    runner.close()
