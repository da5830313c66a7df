"""Aborts, steps without memory, rows that are not finite, a lost device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.errors import DeviceLost
from trivet.messages import FinishReason

EngineFactory = Callable[..., Any]


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_an_abort_frees_the_blocks_at_once(make_engine: EngineFactory, depth: int, num_steps: int) -> None:
    engine = make_engine(depth=depth, token_budget=8)
    sequence = engine.add(engine.prompt(20), max_tokens=50, ignore_eos=True)
    other = engine.add(engine.prompt(5, 1), max_tokens=10, ignore_eos=True)
    for _ in range(num_steps):
        engine.step()
    assert engine.core.abort(sequence.request_id)
    held = engine.core.block_pool.usage * engine.core.block_pool.num_usable
    assert held == pytest.approx(
        -(-other.num_computed_tokens // 4) if other.num_computed_tokens else 0, abs=1
    )
    assert not engine.core.abort(sequence.request_id)
    num_updates = len(engine.updates[sequence.request_id])
    engine.run()
    assert len(engine.updates[sequence.request_id]) == num_updates, "no answer follows an abort"
    assert other.output_token_ids == engine.expected(other)
    assert engine.core.block_pool.usage == 0


def test_a_row_that_is_not_finite_fails_its_sequence_only(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, options={"nan_token": "33"})
    good = [engine.add([3, 4, seed], max_tokens=8, ignore_eos=True, stop_token_ids=(33,)) for seed in (5, 6)]
    bad = engine.add([3, 4, 33, 7, 8, 9, 10, 11, 12], max_tokens=9)
    engine.run()
    failure = engine.updates[bad.request_id][-1].failure
    assert failure.code == "generation_failed"
    assert failure.status == 500
    assert engine.finish_reason(bad) is FinishReason.ERROR
    assert bad.output_token_ids == []
    for sequence in good:
        assert sequence.output_token_ids == engine.expected(sequence)
    assert engine.core.load().num_finished["error"] == 1
    assert engine.core.block_pool.find(bad.block_keys) == [], "suspect KV is not offered to others"


@pytest.mark.parametrize("steps", ["1", "3", "2,4", "5"])
def test_a_step_without_memory_is_done_again(make_engine: EngineFactory, depth: int, steps: str) -> None:
    engine = make_engine(depth=depth, token_budget=40, max_num_seqs=8, options={"out_of_memory_steps": steps})
    sequences = [engine.add(engine.prompt(30, seed), max_tokens=15, temperature=0.7) for seed in range(8)]
    engine.run()
    for sequence in sequences:
        assert engine.finish_reason(sequence) in (FinishReason.STOP, FinishReason.LENGTH)
        assert sequence.output_token_ids == engine.expected(sequence)
    assert engine.core.block_pool.usage == 0


def test_a_small_step_without_memory_fails_its_youngest(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, options={"out_of_memory_steps": "4"})
    old = engine.add(engine.prompt(4), max_tokens=15, ignore_eos=True)
    young = engine.add(engine.prompt(4, 1), max_tokens=15, ignore_eos=True)
    engine.run()
    assert engine.updates[young.request_id][-1].failure.code == "out_of_memory"
    assert old.output_token_ids == engine.expected(old)
    assert engine.core.block_pool.usage == 0


def test_what_a_failed_step_published_is_withdrawn(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, token_budget=64, options={"out_of_memory_steps": "1"})
    sequence = engine.add(engine.prompt(20), max_tokens=1)
    engine.step()
    if depth == 2:
        assert engine.core.block_pool.find(sequence.block_keys) != []
        engine.step()
    assert engine.core.block_pool.find(sequence.block_keys) == []
    engine.run()
    assert sequence.output_token_ids == engine.expected(sequence)


def test_a_failed_step_costs_earlier_ones_nothing(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, options={"out_of_memory_steps": "2"})
    first = engine.add(engine.prompt(20), max_tokens=1)
    engine.run()
    engine.add(engine.prompt(20, 1), max_tokens=1)
    engine.run()
    assert len(engine.core.block_pool.find(first.block_keys)) == 5


def test_a_budget_that_shrank_grows_back(make_engine: EngineFactory) -> None:
    engine = make_engine(token_budget=32, options={"out_of_memory_steps": "1"})
    engine.add(engine.prompt(40), max_tokens=80, ignore_eos=True)
    engine.step()
    engine.step()
    assert engine.core.scheduler.token_budget == 16
    engine.run()
    assert engine.core.scheduler.token_budget == 32


def test_a_lost_device_ends_the_loop(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth, options={"device_lost_step": "3"})
    engine.add([3, 4], max_tokens=20, ignore_eos=True)
    with pytest.raises(DeviceLost):
        engine.run()
