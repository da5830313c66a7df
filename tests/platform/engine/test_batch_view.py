"""Who is in the batch, and who holds which blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trivet.engine.batch_view import BLANK, CACHED, MAX_CELLS, SHARED, batch_view

EngineFactory = Callable[..., Any]


def test_an_empty_engine_holds_nothing(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=9)
    view = batch_view(engine.core)
    assert (view.lanes, view.blocks, view.num_waiting) == ([], [BLANK] * 8, 0)
    assert (view.num_blocks, view.block_size, view.max_num_seqs) == (8, 4, 4)


def test_a_lane_tells_how_far_its_sequence_is_and_its_blocks_are_its_own(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=17)
    engine.add(engine.prompt(9, 1), max_tokens=20, ignore_eos=True)
    engine.add(engine.prompt(6, 2), max_tokens=20, ignore_eos=True)
    for _ in range(4):
        engine.step()
    view = batch_view(engine.core)
    first, second = sorted(view.lanes, key=lambda lane: -lane.num_prompt_tokens)
    assert (first.num_prompt_tokens, first.max_total_tokens) == (9, 29)
    assert first.num_output_tokens > 0
    assert first.num_computed_tokens >= 9
    for lane in (first, second):
        assert view.blocks.count(lane.slot) == lane.num_blocks > 0


def test_what_is_remembered_is_told_apart_from_what_is_blank(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=17)
    engine.add(engine.prompt(9, 1), max_tokens=3, ignore_eos=True)
    engine.run()
    view = batch_view(engine.core)
    assert view.lanes == []
    assert view.blocks.count(CACHED) == engine.core.reset_prefix_cache() // 4 > 0


def test_a_block_of_two_sequences_is_shared(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=33)
    prompt = engine.prompt(13, 1)
    engine.add(prompt, max_tokens=30, ignore_eos=True)
    for _ in range(4):
        engine.step()
    engine.add([*prompt, 5], max_tokens=30, ignore_eos=True)
    for _ in range(4):
        engine.step()
    view = batch_view(engine.core)
    assert view.blocks.count(SHARED) == 3
    assert {lane.num_cached_tokens for lane in view.lanes} == {0, 12}


def test_a_large_pool_is_told_in_part(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=3 * MAX_CELLS)
    view = batch_view(engine.core)
    assert view.blocks_per_cell == 3
    assert len(view.blocks) == -(-(3 * MAX_CELLS - 1) // 3)
