"""What the prefix cache saves, counted in tokens that the runner computes: waves, conversations, eviction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.sampling_params import SamplingParams

EngineFactory = Callable[..., Any]
BLOCK = 16
SYSTEM, USER, ANSWER, TURNS = 512, 32, 96, 10
GREEDY = {"max_tokens": ANSWER, "ignore_eos": True}


def conversation_engine(make_engine: EngineFactory, **settings: Any) -> Any:
    sizes = {"block_size": BLOCK, "max_model_len": 2048, "num_blocks": 200, "token_budget": 256}
    return make_engine(**{**sizes, "max_num_seqs": 16, **settings})


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // BLOCK * BLOCK


def test_a_wave_of_sixteen_computes_its_prefix_once(make_engine: EngineFactory, depth: int) -> None:
    engine = conversation_engine(make_engine, depth=depth)
    counts = engine.count_tokens()
    prefix = engine.prompt(768, 0)
    wave = [
        engine.add(prefix + engine.prompt(32, 1 + seed), max_tokens=4, ignore_eos=True) for seed in range(16)
    ]
    engine.run()
    assert sum(counts) == 768 + 16 * (32 + 3)
    assert [one.num_cached_tokens for one in wave] == [0] + 15 * [768]
    for one in wave[:3]:
        assert one.output_token_ids == engine.expected(one)


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("budget", [256, 4096])
def test_the_completions_of_a_prompt_compute_and_score_and_count_it_once(
    make_engine: EngineFactory, caches: bool, budget: int
) -> None:
    engine = conversation_engine(make_engine, enable_prefix_caching=caches, token_budget=budget)
    counts = engine.count_tokens()
    prompt, wish = engine.prompt(769, 0), SamplingParams(n=8, prompt_logprobs=1)
    many = [
        engine.add(
            prompt,
            max_tokens=4,
            ignore_eos=True,
            group="g",
            index=index,
            prompt_logprobs=wish.child(index).prompt_logprobs,
        )
        for index in range(8)
    ]
    engine.run()
    assert sum(counts) == 769 + 7 * 1 + 8 * 3
    assert [len(one.prompt_logprobs) for one in many] == [768] + 7 * [0]
    assert {tuple(one.output_token_ids) for one in many} == {tuple(engine.expected(many[0]))}
    assert engine.core.load().prompt_tokens == 769


def test_a_wave_is_not_held_up_by_a_prefix_that_another_is_computing(make_engine: EngineFactory) -> None:
    """Those who wait for it wait as long as it takes, and no step is smaller than it might be."""
    engine = conversation_engine(make_engine, depth=1)
    counts = engine.count_tokens()
    prefix = engine.prompt(768, 0)
    for seed in range(4):
        engine.add(prefix + engine.prompt(32, 1 + seed), max_tokens=1)
    engine.run()
    assert counts == [256, 256, 256, 4 * 32]


def test_a_conversation_hits_every_whole_block_of_what_it_repeats(make_engine: EngineFactory) -> None:
    """All but the last token of an answer: it was drawn, and its KV was never computed."""
    engine = conversation_engine(make_engine)
    prompt = engine.prompt(SYSTEM, 0)
    computed = 0
    for turn in range(1, TURNS + 1):
        prompt = prompt + engine.prompt(USER, turn)
        one = engine.add(prompt, **GREEDY)
        engine.run()
        assert one.num_cached_tokens == whole_blocks(computed)
        if turn >= 3:
            assert one.num_cached_tokens >= 0.9 * len(prompt)
        computed = len(one.token_ids) - 1
        prompt = list(one.token_ids)
    load = engine.core.load()
    assert load.prefix_hits / load.prefix_queries > 0.85


def test_a_conversation_is_the_same_hot_and_cold(make_engine: EngineFactory) -> None:
    conversations, hits = [], []
    for is_hot in (True, False):
        engine = conversation_engine(make_engine, enable_prefix_caching=is_hot)
        prompt = engine.prompt(SYSTEM, 0)
        for turn in range(1, 4):
            one = engine.add(
                prompt + engine.prompt(USER, turn), **{**GREEDY, "temperature": 0.8, "seed": turn}
            )
            engine.run()
            prompt = list(one.token_ids)
        conversations.append(prompt)
        hits.append(engine.core.load().prefix_hits)
    assert conversations[0] == conversations[1]
    assert hits[0] > 0 == hits[1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda answer: [*answer[:40], 60, 61, *answer[41:]], id="re-tokenised"),
        pytest.param(lambda answer: answer[50:], id="without its thinking"),
        pytest.param(lambda answer: [], id="left out"),
    ],
)
def test_an_answer_that_comes_back_changed_hits_up_to_the_change(
    make_engine: EngineFactory, change: Callable[[list[int]], list[int]]
) -> None:
    engine = conversation_engine(make_engine)
    first = engine.add(engine.prompt(SYSTEM + USER, 0), **GREEDY)
    engine.run()
    answer = change(first.output_token_ids)
    second = engine.add([*first.prompt_token_ids, *answer, *engine.prompt(USER, 1)], **GREEDY)
    engine.run()
    known, given = first.token_ids[:-1], list(second.prompt_token_ids)
    num_same = next(i for i, (one, other) in enumerate(zip(known, given, strict=False)) if one != other)
    assert num_same >= SYSTEM + USER
    assert second.num_cached_tokens == whole_blocks(num_same)
    assert second.output_token_ids == engine.expected(second)


def test_the_end_of_a_prefix_goes_before_its_beginning_and_the_oldest_first(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine(block_size=4, num_blocks=21, max_model_len=80, depth=1)
    old, new = ([*engine.prompt(32, seed), 3] for seed in (1, 2))
    for prompt in (old, new):
        engine.add(prompt, max_tokens=1)
        engine.run()
    engine.add(engine.prompt(25, 3), max_tokens=1)  # needs seven blocks, and four are blank
    engine.run()
    assert [len(engine.core.block_pool.find(keys_of(engine, prompt))) for prompt in (old, new)] == [5, 8]


def keys_of(engine: Any, prompt: list[int]) -> list[bytes]:
    """By asking once more for what is known of a prompt, without a step."""
    probe = engine.add(prompt, max_tokens=1)
    engine.core.scheduler._find_cached(probe)
    engine.core.abort(probe.request_id)
    return list(probe.block_keys)


def test_after_a_reset_nothing_is_found_and_what_runs_goes_on(make_engine: EngineFactory) -> None:
    engine = conversation_engine(make_engine)
    done = engine.add(engine.prompt(100, 0), **GREEDY)
    engine.run()
    running = engine.add(engine.prompt(100, 1), **GREEDY)
    for _ in range(5):
        engine.step()
    assert engine.core.reset_prefix_cache() > 0
    again = engine.add(engine.prompt(100, 0), **GREEDY)
    engine.run()
    assert again.num_cached_tokens == 0
    assert again.output_token_ids == done.output_token_ids
    assert running.output_token_ids == engine.expected(running)
    assert engine.core.block_pool.usage == 0


def test_the_second_request_finds_the_firsts_prompt_and_answer_in_the_cache(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine()
    first = engine.add(engine.prompt(17), max_tokens=12, ignore_eos=True)
    engine.run()
    again = engine.add([*first.token_ids, 3], max_tokens=2)
    engine.run()
    assert again.num_cached_tokens == 28  # 29 tokens, of which the last has no KV, in blocks of 4
    load = engine.core.load()
    assert (load.prefix_queries, load.prefix_hits) == (17 + 30, 28)


def test_the_last_prompt_token_is_always_computed(make_engine: EngineFactory) -> None:
    engine = make_engine()
    first = engine.add(engine.prompt(16), max_tokens=3)
    engine.run()
    second = engine.add(engine.prompt(16), max_tokens=3)
    engine.run()
    assert second.num_cached_tokens == 12
    assert second.output_token_ids == first.output_token_ids


def test_salts_never_share(make_engine: EngineFactory) -> None:
    engine = make_engine()
    for salt, cached in (("a", 0), ("b", 0), ("", 0), ("a", 16)):
        sequence = engine.add(engine.prompt(18), max_tokens=2, cache_salt=salt)
        engine.run()
        assert sequence.num_cached_tokens == cached


def test_the_cache_can_be_switched_off(make_engine: EngineFactory) -> None:
    engine = make_engine(enable_prefix_caching=False)
    for _ in range(2):
        sequence = engine.add(engine.prompt(18), max_tokens=2)
        engine.run()
        assert sequence.num_cached_tokens == 0
    assert engine.core.load().prefix_queries == 0
