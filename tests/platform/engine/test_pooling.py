"""Sequences that are embedded, through the core on the null runner."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trivet.engine.pooling import finished_vector
from trivet.errors import ContextLengthExceeded, OutOfMemory, UnsupportedParameter
from trivet.messages import FinishReason
from trivet.pooling_params import PoolingParams
from trivet_null.model import NullModel

EngineFactory = Callable[..., Any]
LAST, MEAN = PoolingParams(pooling="last"), PoolingParams(pooling="mean")


def embed(engine: Any, prompt: list[int], pooling: PoolingParams, **more: Any) -> Any:
    return engine.add(prompt, pooling=pooling, **more)


def check(engine: Any, sequence: Any) -> None:
    """Its one update has the vector that the whole prompt alone gives."""
    (update,) = engine.updates[sequence.request_id]
    assert update.finish_reason is FinishReason.STOP
    assert (update.token_ids, sequence.num_output_tokens) == ([], 0)
    hidden = NullModel(engine.spec.num_tokens).hidden_after_each(
        sequence.prompt_token_ids, engine.spec.hidden_size
    )
    pooled = hidden[-1] if sequence.pooling.pooling == "last" else hidden.mean(axis=0, dtype=np.float64)
    wanted = finished_vector(pooled.astype(np.float32), sequence.pooling)
    np.testing.assert_allclose(update.embedding, wanted, atol=1e-6)


def ran_out_of_memory(engine: Any, sequence: Any) -> bool:
    """A small step that fails takes its youngest sequence with it."""
    failure = engine.updates[sequence.request_id][-1].failure
    return failure is not None and failure.code == OutOfMemory.code


@pytest.mark.parametrize("caches", [False, True], ids=["no-cache", "cache"])
def test_any_mix_of_vectors_and_tokens_equals_each_request_alone(
    make_engine: EngineFactory, depth: int, caches: bool
) -> None:
    """Chunks, shared beginnings, preemption, aborts, a step without memory; tiny pools."""
    for seed in range(12):
        rng = random.Random(seed)
        failing = ",".join(str(step) for step in rng.sample(range(4, 30), 2))
        engine = make_engine(
            depth=depth,
            block_size=4,
            num_blocks=1 + 12 + rng.choice([0, 1, 4]),
            max_model_len=48,
            max_num_seqs=rng.choice([2, 5]),
            token_budget=rng.choice([6, 17]),
            enable_prefix_caching=caches,
            options={"out_of_memory_steps": failing} if seed % 2 else None,
        )
        shared = engine.prompt(30, seed)
        sequences, aborted = [], set()
        while len(sequences) < 16 or engine.core.has_work:
            if len(sequences) < 16 and rng.random() < 0.5:
                prompt = shared[: rng.randint(0, 30)] + engine.prompt(rng.randint(1, 8), rng.random())
                wish = rng.choice([LAST, MEAN, None])
                more = {"max_tokens": rng.randint(1, 10), "ignore_eos": True} if wish is None else {}
                sequences.append(engine.add(prompt, pooling=wish, **more))
            if sequences and rng.random() < 0.03:
                victim = rng.choice(sequences)
                if engine.core.abort(victim.request_id):
                    aborted.add(victim)
            engine.step()
        for sequence in sequences:
            if sequence in aborted or ran_out_of_memory(engine, sequence):
                continue
            if sequence.pooling is None:
                assert sequence.output_token_ids == engine.expected(sequence)
            else:
                check(engine, sequence)
        assert engine.core.block_pool.usage == 0
        assert engine.core.load().num_tokens_outstanding == 0


def test_a_last_token_that_stands_alone_in_its_step_is_computed(make_engine: EngineFactory) -> None:
    engine = make_engine(token_budget=8)
    sequences = [embed(engine, engine.prompt(17), pooling) for pooling in (LAST, MEAN)]
    engine.run()
    for sequence in sequences:
        check(engine, sequence)


def test_the_last_token_is_found_behind_the_prefix_cache_and_a_mean_computes_all(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine()
    engine.add(engine.prompt(20), max_tokens=1)
    engine.run()
    last, mean = (embed(engine, engine.prompt(20), pooling) for pooling in (LAST, MEAN))
    engine.run()
    check(engine, last)
    check(engine, mean)
    assert (last.num_cached_tokens, mean.num_cached_tokens) == (16, 0)
    again = engine.add(engine.prompt(20), max_tokens=1)
    engine.run()
    assert again.num_cached_tokens == 16, "what was embedded can be hit"


def test_a_text_may_fill_the_context_and_no_more(make_engine: EngineFactory) -> None:
    engine = make_engine(max_model_len=32)
    sequence = embed(engine, engine.prompt(32), MEAN)
    engine.run()
    check(engine, sequence)
    with pytest.raises(ContextLengthExceeded, match=r"has 33 tokens and the context is 32 tokens; shorten"):
        embed(engine, engine.prompt(33), MEAN)


@pytest.mark.parametrize("pooling", [LAST, MEAN], ids=["last", "mean"])
def test_a_vector_that_is_not_finite_fails_its_request_only(
    make_engine: EngineFactory, pooling: PoolingParams
) -> None:
    engine = make_engine(options={"nan_token": "5"}, token_budget=6)
    sick = embed(engine, [5, *[6] * 12], pooling)
    healthy = embed(engine, [7] * 13, pooling)
    engine.run()
    (update,) = engine.updates[sick.request_id]
    assert update.failure.code == "generation_failed"
    assert update.embedding is None
    check(engine, healthy)


def test_a_small_step_without_memory_fails_the_text_that_it_embeds(make_engine: EngineFactory) -> None:
    engine = make_engine(depth=1, options={"out_of_memory_steps": "1,2"})
    sequence = embed(engine, engine.prompt(5), LAST)
    engine.run()
    (update,) = engine.updates[sequence.request_id]
    assert update.failure.code == OutOfMemory.code


def test_a_runner_without_the_feature_refuses(make_engine: EngineFactory) -> None:
    engine = make_engine()
    engine.runner.features = frozenset()
    with pytest.raises(UnsupportedParameter, match="computes no embeddings"):
        embed(engine, engine.prompt(5), LAST)
    assert not engine.core.has_work


def test_a_vector_is_cut_before_it_is_brought_to_length_one() -> None:
    pooled = np.array([3.0, 4.0, 12.0], np.float32)
    plain = PoolingParams(pooling="last", normalize=False, dimensions=2)
    np.testing.assert_array_equal(finished_vector(pooled, plain), [3, 4])
    np.testing.assert_allclose(finished_vector(pooled, PoolingParams(dimensions=2)), [0.6, 0.8], rtol=1e-6)
    assert finished_vector(pooled, PoolingParams()).dtype == np.float32
    assert not finished_vector(np.zeros(3, np.float32), PoolingParams()).any(), "of no length, and no NaN"
