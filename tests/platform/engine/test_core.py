"""The loop: which tokens come, how sequences end, and what is counted."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trivet.engine.sequence import SequenceState
from trivet.messages import FinishReason

EngineFactory = Callable[..., Any]


def test_what_makes_way_for_another_key_goes_on_with_the_same_tokens(
    make_engine: EngineFactory, depth: int
) -> None:
    engine = make_engine(depth=depth, max_num_seqs=3)
    flood = [
        engine.add(engine.prompt(12, seed), max_tokens=40, ignore_eos=True, key="flood") for seed in range(5)
    ]
    for _ in range(6):
        engine.step()
    other = engine.add(engine.prompt(9, 9), max_tokens=6, ignore_eos=True, key="other")
    for _ in range(4):
        engine.step()
    assert other.num_output_tokens > 0
    engine.run()
    assert engine.core.load().num_preemptions == 1
    for sequence in (*flood, other):
        assert sequence.output_token_ids == engine.expected(sequence)


def test_the_length_of_the_queue_costs_a_step_nothing(
    make_engine: EngineFactory, count_calls: Callable[[Callable[[], object]], int]
) -> None:
    """Counted in function calls, because timings are no verdict: classes, keys, deadlines and the report."""
    counts = {}
    for num_waiting in (40, 10_000):
        engine = make_engine(num_blocks=4000, max_model_len=128, max_num_seqs=32, max_num_waiting=20_000)
        for index in range(32 + num_waiting):
            wishes = {"key": f"k{index % 5}", "priority": index % 3, "deadline_s": 1e6 + index}
            engine.add([3, 4, index % 60], max_tokens=100, ignore_eos=True, **wishes)
        for _ in range(40):
            engine.core.step()
        counts[num_waiting] = count_calls(lambda core=engine.core: (core.step(), core.load()))
    assert counts[10_000] < 1.05 * counts[40]


def test_a_seed_gives_the_same_tokens_alone_and_in_company(make_engine: EngineFactory) -> None:
    alone, crowd = make_engine(), make_engine(max_num_seqs=8)
    wishes = {"temperature": 1.0, "seed": 42, "max_tokens": 12, "ignore_eos": True}
    first = alone.add(alone.prompt(9), **wishes)
    alone.run()
    for seed in range(5):
        crowd.add(crowd.prompt(9, seed), temperature=1.0, max_tokens=20)
    second, twin = crowd.add(crowd.prompt(9), **wishes), crowd.add(crowd.prompt(9), **wishes)
    crowd.run()
    assert first.output_token_ids == second.output_token_ids == twin.output_token_ids


def test_requests_without_a_seed_differ(make_engine: EngineFactory) -> None:
    engine = make_engine()
    pair = [engine.add([5, 6], temperature=1.0, max_tokens=12, ignore_eos=True) for _ in range(2)]
    engine.run()
    assert pair[0].output_token_ids != pair[1].output_token_ids


def test_generation_ends_at_the_context_limit_with_length(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, max_model_len=20)
    sequence = engine.add(engine.prompt(9), max_tokens=None, ignore_eos=True)
    engine.run()
    assert len(sequence.token_ids) == 20
    assert engine.finish_reason(sequence) is FinishReason.LENGTH


def test_the_kv_cache_bounds_the_context_too(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, num_blocks=5, block_size=4, max_model_len=100)
    sequence = engine.add(engine.prompt(9), max_tokens=None, ignore_eos=True)
    engine.run()
    assert len(sequence.token_ids) == 16
    assert engine.finish_reason(sequence) is FinishReason.LENGTH


def test_max_tokens_0_ends_at_once_without_a_token(make_engine: EngineFactory) -> None:
    engine = make_engine()
    sequence = engine.add([4, 5], max_tokens=0)
    assert engine.core.has_work
    (update,) = engine.step()
    assert (update.sequence, update.token_ids) == (sequence, [])
    assert update.finish_reason is FinishReason.LENGTH
    assert not engine.core.has_work
    assert engine.core.load().num_steps == 0


def find_greedy_stop(engine: Any, prompt: list[int], at: int) -> int:
    """The token that greedy generation gives at this place, if it is the first of its kind."""
    probe = engine.add(prompt, max_tokens=at + 1, ignore_eos=True)
    engine.run()
    token: int = probe.output_token_ids[at]
    assert token not in probe.output_token_ids[:at]
    return token


def test_a_stop_token_ends_with_its_id_as_the_reason(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth)
    token = find_greedy_stop(engine, engine.prompt(7), 3)
    sequence = engine.add(engine.prompt(7), max_tokens=20, ignore_eos=True, stop_token_ids=(token,))
    engine.run()
    last = engine.updates[sequence.request_id][-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, token)
    assert len(sequence.output_token_ids) == 4


def test_an_end_token_ends_without_a_reason_unless_it_is_ignored(make_engine: EngineFactory) -> None:
    engine = make_engine(max_model_len=4000, vocab_size=8, block_size=128)
    ended = engine.add([3, 4], max_tokens=None)
    ignoring = engine.add([3, 4], max_tokens=200, ignore_eos=True)
    engine.run()
    assert ended.output_token_ids[-1] == 2
    assert engine.updates[ended.request_id][-1].stop_reason is None
    assert engine.finish_reason(ended) is FinishReason.STOP
    assert ignoring.num_output_tokens == 200
    assert 2 in ignoring.output_token_ids


def test_no_end_token_comes_before_min_tokens(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, vocab_size=8, max_model_len=300)
    sequences = [engine.add([3, 4, 5 + seed], max_tokens=60, min_tokens=40) for seed in range(3)]
    engine.run()
    for sequence in sequences:
        assert sequence.num_output_tokens >= 40
        assert 2 not in sequence.output_token_ids[:40]
        assert sequence.output_token_ids == engine.expected(sequence)


def test_ids_that_no_token_has_are_never_sampled(make_engine: EngineFactory) -> None:
    engine = make_engine(vocab_size=64, num_tokens=10)
    sequences = [
        engine.add([4, 5, seed], temperature=5.0, max_tokens=50, ignore_eos=True) for seed in range(4)
    ]
    engine.run()
    drawn = {token for sequence in sequences for token in sequence.output_token_ids}
    assert max(drawn) < 10
    assert len(drawn) > 5


@pytest.mark.parametrize(
    "wishes",
    [{"temperature": 1e-6}, {"top_p": 0.0}, {"min_p": 1.0}, {"top_k": 1}, {"temperature": 1e-300}],
    ids=str,
)
def test_the_narrowest_settings_are_greedy(make_engine: EngineFactory, wishes: dict[str, float]) -> None:
    engine = make_engine()
    greedy = engine.add([3, 4, 5], max_tokens=20, ignore_eos=True)
    narrow = engine.add([3, 4, 5], **{"temperature": 1.0, "max_tokens": 20, "ignore_eos": True, **wishes})
    engine.run()
    assert narrow.output_token_ids == greedy.output_token_ids


def test_the_widest_settings_change_nothing(make_engine: EngineFactory) -> None:
    engine = make_engine()
    wishes = {"temperature": 1.0, "seed": 5, "max_tokens": 20, "ignore_eos": True}
    plain = engine.add([3, 4, 5], **wishes)
    wide = engine.add([3, 4, 5], **wishes, top_k=2**40, top_p=1.0, min_p=0.0)
    engine.run()
    assert wide.output_token_ids == plain.output_token_ids
    assert wide.output_token_ids != engine.add([3, 4, 5], **{**wishes, "seed": 6}).output_token_ids


def test_logprobs_are_raw_and_as_many_as_wanted(make_engine: EngineFactory) -> None:
    engine = make_engine()
    plain = engine.add([3, 4], max_tokens=4, ignore_eos=True)
    chosen = engine.add([3, 4], max_tokens=4, ignore_eos=True, logprobs=0, temperature=0.5, top_k=1)
    three = engine.add([3, 4], max_tokens=4, ignore_eos=True, logprobs=3)
    engine.run()
    assert all(update.logprobs is None for update in engine.updates[plain.request_id])
    assert chosen.output_token_ids == three.output_token_ids
    for few, many in zip(engine.updates[chosen.request_id], engine.updates[three.request_id], strict=True):
        (short,), (long,) = few.logprobs, many.logprobs
        assert short.top == []
        assert short.logprob == pytest.approx(long.logprob, abs=1e-6)
        assert long.top[0] == (long.token_id, pytest.approx(long.logprob))
        assert long.rank == 1
        assert [logprob for _, logprob in long.top] == sorted((lp for _, lp in long.top), reverse=True)
        assert len(long.top) == 3
        assert math.isfinite(long.logprob)


def test_load_counts_what_is_there_and_what_is_still_to_be_computed(make_engine: EngineFactory) -> None:
    engine = make_engine(depth=1, max_num_seqs=2, token_budget=16, num_blocks=33)
    for seed in range(3):
        engine.add(engine.prompt(10, seed), max_tokens=5, ignore_eos=True)
    load = engine.core.load()
    assert (load.num_running, load.num_waiting, load.num_tokens_outstanding) == (0, 3, 45)
    engine.step()
    load = engine.core.load()
    assert (load.num_running, load.num_waiting, load.num_tokens_outstanding) == (2, 1, 45 - 16)
    assert load.kv_usage == pytest.approx(5 / 32), "ten tokens of one and six of the other"
    engine.run()
    load = engine.core.load()
    assert (load.num_running, load.num_waiting, load.num_tokens_outstanding) == (0, 0, 0)
    assert (load.prompt_tokens, load.generation_tokens) == (30, 15)
    assert load.num_finished == {"stop": 0, "length": 3, "abort": 0, "error": 0}


def test_stamps_follow_the_clock(make_engine: EngineFactory) -> None:
    engine = make_engine(depth=1, token_budget=8)
    sequence = engine.add(engine.prompt(12), max_tokens=3, ignore_eos=True)
    for _ in range(4):
        engine.clock.now_s += 1
        engine.step()
    assert sequence.state is SequenceState.FINISHED
    stamps = (sequence.arrival_s, sequence.first_scheduled_s, sequence.first_token_s, sequence.finished_s)
    assert stamps == (100.0, 101.0, 102.0, 104.0)


def test_the_prompt_may_be_any_sequence_of_ids(make_engine: EngineFactory) -> None:
    engine = make_engine()
    sequence = engine.add(np.array([3, 4, 5]).tolist(), max_tokens=2)
    other = engine.add((3, 4, 5), max_tokens=2)
    engine.run()
    assert sequence.output_token_ids == other.output_token_ids


def test_the_engine_imports_no_torch() -> None:
    """The CPU runner with native kernels starts in a process without it (1.4 to 2 s and 200 MB)."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import trivet.engine.core, trivet.engine.sampler, trivet_null.runner, trivet_null.backend"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
