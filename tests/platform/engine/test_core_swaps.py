"""Preempted sequences whose KV waits in the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trivet.messages import FinishReason

EngineFactory = Callable[..., Any]


@pytest.mark.parametrize("num_host_blocks", [3, 12, 100])
def test_swapped_sequences_go_on_with_the_same_tokens(
    make_engine: EngineFactory, depth: int, num_host_blocks: int
) -> None:
    engine = make_engine(
        depth=depth, num_blocks=12, max_model_len=40, max_num_seqs=8, num_host_blocks=num_host_blocks
    )
    sequences = [engine.add(engine.prompt(12, seed), max_tokens=25, ignore_eos=True) for seed in range(8)]
    most_used = 0.0
    while engine.core.has_work:
        engine.step()
        most_used = max(most_used, engine.core.load().swap_usage)
    load = engine.core.load()
    assert load.num_preemptions >= load.num_swaps > 0
    assert most_used > 0
    assert (load.num_swapped, load.swap_usage, load.kv_usage) == (0, 0.0, 0.0)
    for sequence in sequences:
        assert sequence.output_token_ids == engine.expected(sequence)


def test_a_swapped_sequence_is_not_computed_again(make_engine: EngineFactory, depth: int) -> None:
    """Without a prefix cache every preemption costs all tokens once more."""
    num_computed: dict[int, int] = {}
    for num_host_blocks in (0, 100):
        engine = make_engine(
            depth=depth,
            num_blocks=12,
            max_model_len=40,
            max_num_seqs=8,
            token_budget=8,
            num_host_blocks=num_host_blocks,
            enable_prefix_caching=False,
        )
        for seed in range(8):
            engine.add(engine.prompt(12, seed), max_tokens=25, ignore_eos=True)
        counts = engine.count_tokens()
        engine.run()
        num_computed[num_host_blocks] = sum(counts)
    assert num_computed[100] == 8 * (12 + 24)
    assert num_computed[0] > num_computed[100] + 50


@pytest.mark.parametrize("steps", ["9", "12", "15,16", "20,30,40"])
def test_a_swap_in_a_step_without_memory_is_undone(
    make_engine: EngineFactory, depth: int, steps: str
) -> None:
    engine = make_engine(
        depth=depth,
        num_blocks=12,
        max_model_len=40,
        max_num_seqs=8,
        num_host_blocks=20,
        options={"out_of_memory_steps": steps},
    )
    sequences = [engine.add(engine.prompt(12, seed), max_tokens=25, ignore_eos=True) for seed in range(8)]
    engine.run()
    for sequence in sequences:
        output = sequence.output_token_ids
        assert output == engine.expected(sequence)[: len(output)]
    assert sum(engine.finish_reason(one) is FinishReason.LENGTH for one in sequences) >= 5
    assert engine.core.load().swap_usage == 0


def test_an_aborted_sequence_leaves_the_swap_space(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=12, max_model_len=40, max_num_seqs=8, num_host_blocks=20)
    sequences = [engine.add(engine.prompt(12, seed), max_tokens=25, ignore_eos=True) for seed in range(8)]
    while engine.core.load().num_swapped == 0:
        engine.step()
    for sequence in sequences:
        engine.core.abort(sequence.request_id)
    assert engine.core.load().swap_usage == 0
    engine.run()


def test_swap_space_is_used_only_where_copying_is_measured_to_be_cheaper(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=12, max_model_len=40, max_num_seqs=8, num_host_blocks=20)
    swap = engine.core.scheduler.swap
    assert swap is not None
    swap.costs.copy_s_per_block = 1e6
    for seed in range(8):
        engine.add(engine.prompt(12, seed), max_tokens=25, ignore_eos=True)
    engine.run()
    load = engine.core.load()
    assert load.num_preemptions > 0
    assert load.num_swaps == 0
