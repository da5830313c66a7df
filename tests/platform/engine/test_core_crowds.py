"""Crowds of requests of every kind: each gets what it would get alone, and nothing is left held."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trivet.errors import ContextLengthExceeded, Overloaded
from trivet.messages import FinishReason
from trivet_null.model import NullModel

EngineFactory = Callable[..., Any]


@pytest.mark.parametrize("block_size", [4, 16, 128])
@pytest.mark.parametrize(
    ("caches", "num_host_blocks"), [(False, 0), (True, 0), (True, 5)], ids=["no-cache", "cache", "swap"]
)
def test_any_mix_of_requests_equals_each_request_alone(
    make_engine: EngineFactory, depth: int, block_size: int, caches: bool, num_host_blocks: int
) -> None:
    """Chunked prefill, preemption, aborts, shared prefixes, every way to sample; tiny pools."""
    for seed in range(4):
        rng = random.Random(seed * 1000 + block_size)
        longest = 24 if block_size == 4 else 90 if block_size == 16 else 250
        per_sequence = -(-(longest + 30) // block_size)
        engine = make_engine(
            depth=depth,
            block_size=block_size,
            num_blocks=1 + per_sequence + rng.choice([0, 1, 3, 10]),
            max_model_len=longest + 30,
            max_num_seqs=rng.choice([2, 5]),
            token_budget=rng.choice([6, 23, 64]),
            num_tokens=rng.choice([61, 64]),
            num_host_blocks=num_host_blocks,
            enable_prefix_caching=caches,
        )
        shared = [engine.prompt(longest - 4, seed=n) for n in range(2)]
        sequences, aborted = [], set()
        while len(sequences) < 14 or engine.core.has_work:
            if len(sequences) < 14 and rng.random() < 0.6:
                prompt = engine.prompt(rng.randint(1, longest), rng.random())
                if rng.random() < 0.6:
                    prompt = rng.choice(shared)[: rng.randint(1, longest - 4)] + prompt[: rng.randint(0, 4)]
                wishes = random_wishes(rng)
                if max(prompt[:longest]) >= engine.spec.num_tokens:  # which has no logprob
                    del wishes["prompt_logprobs"]
                sequences.append(engine.add(prompt[:longest], **wishes))
            if sequences and rng.random() < 0.03:
                victim = rng.choice(sequences)
                if engine.core.abort(victim.request_id):
                    aborted.add(victim)
            engine.step()
        for sequence in sequences:
            output, expected = sequence.output_token_ids, engine.expected(sequence)
            if sequence in aborted:
                assert output == expected[: len(output)]
                continue
            assert output == expected, (seed, sequence.request_id)
            assert output == [t for u in engine.updates[sequence.request_id] for t in u.token_ids]
            check_prompt_logprobs(engine, sequence)
            assert engine.finish_reason(sequence) == (
                FinishReason.STOP if output[-1] in sequence.stop_ids else FinishReason.LENGTH
            )
        assert engine.core.block_pool.usage == 0
        engine.core.block_pool.reset_cache()
        assert engine.core.block_pool.num_free == engine.core.block_pool.num_usable
        assert engine.core.load().num_tokens_outstanding == 0


def check_prompt_logprobs(engine: Any, sequence: Any) -> None:
    """One for each prompt token but the first, in order, whatever chunks and preemptions there were."""
    count, prompt = sequence.params.prompt_logprobs, sequence.prompt_token_ids
    came = [u.prompt_logprobs for u in engine.updates[sequence.request_id] if u.prompt_logprobs is not None]
    if count is None:
        assert came == []
        return
    (entries,) = came
    assert [entry.token_id for entry in entries] == list(prompt[1:])
    logits = NullModel(engine.spec.num_tokens).logits_after_each(prompt)[:-1].astype(np.float64)
    raw = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row, entry in zip(raw, entries, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token_id], abs=1e-4)
        assert [token for token, _ in entry.top] == np.argsort(-row, kind="stable")[:count].tolist()


def random_wishes(rng: random.Random) -> dict[str, Any]:
    max_tokens = rng.choice([1, 2, 5, 12, 26, None])
    return {
        "max_tokens": max_tokens,
        "temperature": rng.choice([0.0, 0.0, 0.8, 1.5]),
        "top_p": rng.choice([1.0, 0.9]),
        "top_k": rng.choice([0, -1, 5]),
        "min_p": rng.choice([0.0, 0.05]),
        "seed": rng.choice([None, 7, -1]),
        "min_tokens": rng.choice([0, 0, 1 if max_tokens else 3]),
        "stop_token_ids": rng.choice([(), (), (11, 12, 13), (40, 5000)]),
        "ignore_eos": rng.random() < 0.3,
        "logprobs": rng.choice([None, 0, 3]),
        "prompt_logprobs": rng.choice([None, None, 0, 2]),
        "presence_penalty": rng.choice([0.0, 0.0, 1.5]),
        "frequency_penalty": rng.choice([0.0, 0.0, -0.5]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.5]),
        "logit_bias": rng.choice([None, None, {5: 4.0, 2: -3.0}]),
        "allowed_token_ids": rng.choice([None, None, tuple(range(0, 61, 2))]),
        "bad_word_ids": rng.choice([(), (), [(20,), (4, 6), (6,)]]),
        "priority": rng.choice([0, 0, 1]),
        "cache_salt": rng.choice(["", "", "other"]),
    }


def test_eight_requests_in_a_pool_of_just_over_one_all_finish_right(
    make_engine: EngineFactory, depth: int
) -> None:
    engine = make_engine(depth=depth, num_blocks=12, max_model_len=40, max_num_seqs=8)
    sequences = [engine.add(engine.prompt(12, seed), max_tokens=25, ignore_eos=True) for seed in range(8)]
    engine.run()
    assert engine.core.load().num_preemptions > 0
    for sequence in sequences:
        assert sequence.output_token_ids == engine.expected(sequence)


def test_ten_times_more_than_fits_all_finishes(make_engine: EngineFactory) -> None:
    """KV for about eight, eighty at once, of several keys and classes."""
    engine = make_engine(num_blocks=81, max_model_len=60, max_num_seqs=16, token_budget=48)
    rng = random.Random(3)
    sequences = [
        engine.add(
            engine.prompt(rng.randint(1, 25), seed),
            max_tokens=rng.randint(5, 35),
            ignore_eos=True,
            temperature=rng.choice([0.0, 1.0]),
            priority=rng.randint(0, 3),
            key=rng.choice("abc"),
        )
        for seed in range(80)
    ]
    engine.run()
    assert engine.core.load().num_preemptions > 0
    for sequence in sequences:
        assert sequence.output_token_ids == engine.expected(sequence)
    assert engine.core.block_pool.usage == 0


def test_after_500_mixed_requests_nothing_is_held(make_engine: EngineFactory, depth: int) -> None:
    """Finished, aborted, refused, too long, not finite, out of memory: none leaves a block or a slot."""
    engine = make_engine(
        depth=depth,
        num_blocks=40,
        max_num_seqs=6,
        max_num_waiting=30,
        options={"nan_token": "63", "out_of_memory_steps": "20,21,90"},
    )
    rng = random.Random(5)
    free_slots = len(engine.core.scheduler._free_slots)
    living, refused, usage = [], 0, 0.0
    for number in range(500):
        last = 64 if rng.random() < 0.1 else 63
        prompt = engine.prompt(rng.choice([0, 9, 20])) + rng.choices(range(3, last), k=rng.randint(1, 120))
        try:
            living.append(engine.add(prompt[: rng.choice([5, 30, 140])], str(number), **random_wishes(rng)))
        except (ContextLengthExceeded, Overloaded):
            refused += 1
        if rng.random() < 0.2:
            engine.core.abort(rng.choice(living).request_id)
        for _ in range(rng.randint(0, 5)):
            engine.step()
            usage = max(usage, engine.core.block_pool.usage)
    engine.run()
    assert all(count > 10 for count in (refused, *engine.core.load().num_finished.values()))
    assert usage > 0.9
    assert engine.core.load().prefix_hits > 0
    assert sum(engine.core.load().num_finished.values()) == len(living) == 500 - refused
    assert engine.core.block_pool.usage == 0
    engine.core.block_pool.reset_cache()
    assert engine.core.block_pool.num_free == engine.core.block_pool.num_usable
    assert len(engine.core.scheduler._free_slots) == free_slots
    assert engine.core.load().num_tokens_outstanding == 0
