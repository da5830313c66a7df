"""Feature.POOLING: the last hidden state of a sequence, or the sum of a step's, after the final norm."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import Feature, PoolKind
from trivet.contract_suite.driver import Driver, greedy_work
from trivet.contract_suite.engine_runs import embedding_request, greedy_request, run_core
from trivet.contract_suite.expect import expect_greedy, expect_vector
from trivet.contract_suite.poison import poisoned
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.steps import DrivenSequence, Work
from trivet.contract_suite.subject import Subject
from trivet.contract_suite.tiny_models import NAN_TOKEN
from trivet.engine.pooling import finished_vector
from trivet.messages import FinishReason
from trivet.pooling_params import PoolingParams

Float32 = NDArray[np.float32]
LAST, SUM = PoolKind.LAST, PoolKind.SUM
LAST_PARAMS, MEAN_PARAMS = (PoolingParams(pooling=pooling) for pooling in ("last", "mean"))


def pooling_driver(subject: Subject, model: str = "llama") -> Driver:
    """Skips where there is nothing to test."""
    if not subject.accepts(subject.config(), model):
        pytest.skip(f"backend {subject.backend.name} does not run the model {model}")
    driver = subject.driver(model)
    if Feature.POOLING not in driver.runner.features:
        pytest.skip(f"backend {subject.backend.name} does not declare Feature.POOLING")
    return driver


def wanted_of(subject: Subject, prompt: list[int], kind: PoolKind, model: str = "llama") -> Float32:
    """What the oracle says that a runner returns. [hidden_size]"""
    hidden = subject.oracle(model).hidden(prompt)
    wanted: Float32 = hidden[-1] if kind is LAST else hidden.sum(axis=0)
    return wanted


def vector_of(subject: Subject, prompt: list[int], params: PoolingParams) -> Float32:
    """What the oracle says that the core returns. [hidden_size]"""
    hidden = subject.oracle().hidden(prompt)
    pooled = hidden[-1] if params.pooling == "last" else hidden.mean(axis=0)
    return finished_vector(pooled.astype(np.float32), params)


def test_a_batch_without_pooling_returns_none_of_it(subject: Subject) -> None:
    """And one that only pools needs no logits row."""
    driver = pooling_driver(subject)
    _, output = driver.run([greedy_work(driver.add(random_prompt(5, 1)))])
    assert output.pooled is None
    step, output = driver.run([Work(driver.add(random_prompt(5, 1)), 5, pooling=LAST)])
    assert step.batch.logits_rows.size == 0
    assert output.pooled is not None
    assert output.pooled.dtype == np.float32


@pytest.mark.parametrize("model", ["llama", "qwen3", "qwen2-tied", "mistral-window", "olmo2"])
def test_pooled_states_of_every_length_and_kind_agree_with_the_oracle(subject: Subject, model: str) -> None:
    """In one batch with sequences that draw and with one that wants nothing."""
    driver = pooling_driver(subject, model)
    size = driver.block_size
    lengths = (1, 2, min(size, 40), min(size + 1, 50), min(3 * size + 5, 90))
    prompts = [random_prompt(length, length) for length in lengths for _ in range(2)]
    works = [
        Work(driver.add(prompt), len(prompt), pooling=(LAST, SUM)[i % 2]) for i, prompt in enumerate(prompts)
    ]
    drawing, silent = driver.add(random_prompt(7, 3)), driver.add(random_prompt(4, 3))
    step, output = driver.run([*works, greedy_work(drawing), Work(silent, 4)])
    assert output.pooled is not None
    for work, pooled in zip(step.works, output.pooled, strict=True):
        if work.pooling is not PoolKind.NONE:
            expect_vector(subject, pooled, wanted_of(subject, work.sequence.token_ids, work.pooling, model))
    expect_greedy(subject, drawing.token_ids[:7], drawing.token_ids[7:], model)


@pytest.mark.parametrize("chunk", [1, 7])
def test_the_sums_of_chunks_add_up_and_the_last_chunk_has_the_last(subject: Subject, chunk: int) -> None:
    """While another sequence decodes in every step."""
    driver = pooling_driver(subject)
    prompt = random_prompt(30, 4)
    mate = driver.add(random_prompt(6, 5))
    for kind in (LAST, SUM):
        sequence = driver.add(prompt)
        parts = []
        while sequence.num_left:
            length = min(chunk, sequence.num_left)
            step, output = driver.run([Work(sequence, length, pooling=kind), greedy_work(mate)])
            parts.append(pooled_of(step.works, output.pooled, sequence))
        total = parts[-1] if kind is LAST else np.sum(parts, axis=0)
        expect_vector(subject, total, wanted_of(subject, prompt, kind))
    expect_greedy(subject, mate.token_ids[:6], mate.token_ids[6:])


def test_behind_a_shared_prefix_the_sum_is_of_the_tokens_of_the_step(subject: Subject) -> None:
    """What the prefix cache leaves of a prompt; its last state is the same as without the cache."""
    driver = pooling_driver(subject)
    prefix = random_prompt(2 * driver.block_size, 6)
    parent = driver.add([*prefix, 5])
    driver.prefill(parent)
    for kind in (LAST, SUM):
        child = driver.fork(parent, [*prefix, *random_prompt(4, 7)], 2)
        step, output = driver.run([Work(child, 4, pooling=kind)])
        hidden = subject.oracle().hidden(child.token_ids)[-4:]
        wanted = hidden[-1] if kind is LAST else hidden.sum(axis=0)
        expect_vector(subject, pooled_of(step.works, output.pooled, child), wanted)


def test_a_sequence_that_is_not_finite_spoils_only_its_own_vector(subject: Subject) -> None:
    """Rule 4 holds for what is pooled, too."""
    pooling_driver(subject)
    model, options = poisoned(subject)
    driver = subject.driver(model, options=options)
    prompt = random_prompt(6, 8)
    works = [
        Work(driver.add(tokens), 6, pooling=kind)
        for kind in (LAST, SUM)
        for tokens in (prompt, [NAN_TOKEN, *prompt[1:]])
    ]
    step, output = driver.run(works)
    assert output.pooled is not None
    for work, pooled in zip(step.works, output.pooled, strict=True):
        is_healthy = NAN_TOKEN not in work.sequence.token_ids
        assert np.isfinite(pooled).all() == is_healthy
        if is_healthy:
            expect_vector(subject, pooled, wanted_of(subject, prompt, work.pooling, model))


@pytest.mark.parametrize("params", [LAST_PARAMS, MEAN_PARAMS], ids=["last", "mean"])
def test_the_core_embeds_a_prompt_in_chunks_twice_and_beside_others(
    subject: Subject, params: PoolingParams
) -> None:
    """The second time its beginning is in the prefix cache, which a mean must not read."""
    pooling_driver(subject)
    prompts = [random_prompt(length, length) for length in (1, 33, 2 * subject.block_size + 9)]
    with subject.core(max_num_batched_tokens=32) as core:
        for wave in range(2):
            others = [greedy_request(f"other-{wave}-{i}", random_prompt(20 + i, i), 5) for i in range(3)]
            others.append(greedy_request(f"same-{wave}", prompts[2], 5))
            embedded = [embedding_request(f"{wave}-{i}", prompt, params) for i, prompt in enumerate(prompts)]
            outcomes = run_core(core, [*embedded, *others])
            for i, prompt in enumerate(prompts):
                done = outcomes[f"{wave}-{i}"]
                assert (done.finish_reason, done.token_ids) == (FinishReason.STOP, [])
                assert done.embedding is not None
                expect_vector(subject, done.embedding, vector_of(subject, prompt, params))
            for other in others:
                expect_greedy(subject, other.prompt_token_ids, outcomes[other.request_id].token_ids)
        assert core.load().prefix_hits > 0
        assert core.block_pool.usage == 0


def test_embedding_where_memory_is_short_gives_the_same_vectors(subject: Subject) -> None:
    """Sequences that grow preempt those that are embedded, which start over."""
    pooling_driver(subject)
    size = subject.block_size
    with subject.core(
        num_blocks=1 + 6, max_num_batched_tokens=max(12, size // 4), max_model_len=5 * size
    ) as core:
        prompts = [random_prompt(2 * size + i, i) for i in range(4)]
        growing = [greedy_request(f"g{i}", random_prompt(size - 2, i), size) for i in range(3)]
        embedded = [
            embedding_request(str(i), prompt, (LAST_PARAMS, MEAN_PARAMS)[i % 2])
            for i, prompt in enumerate(prompts)
        ]
        outcomes = run_core(core, [*growing, *embedded])
        for sequence in embedded:
            assert sequence.pooling is not None
            vector = outcomes[sequence.request_id].embedding
            assert vector is not None
            expect_vector(
                subject, vector, vector_of(subject, list(sequence.prompt_token_ids), sequence.pooling)
            )


def pooled_of(works: list[Work], pooled: Float32 | None, sequence: DrivenSequence) -> Float32:
    """The sequence's row. [hidden_size]"""
    assert pooled is not None, "the step pools and returns nothing"
    row: Float32 = pooled[[work.sequence for work in works].index(sequence)]
    return row
