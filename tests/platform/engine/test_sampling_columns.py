"""What a sequence asks for, as columns of a step's rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trivet.contract import Batch, Sampling
from trivet.engine.sampling_columns import SamplingColumns
from trivet.engine.scheduler import Scheduled
from trivet.engine.sequence import Sequence
from trivet.engine.uniform import uniforms
from trivet.sampling_params import SamplingParams


def sequence(seed: int = 1, stop_ids: tuple[int, ...] = (2,), prompt: int = 3, **params: Any) -> Sequence:
    made = Sequence("r", [5] * prompt, SamplingParams(**params))
    made.seed, made.stop_ids = seed, frozenset(stop_ids)
    return made


def build(columns: SamplingColumns, *rows: tuple[int, Sequence, int]) -> Sampling:
    """Rows of slot, sequence and tokens before the drawn one."""
    for _, made, length in rows:
        made.token_ids.extend([7] * (min(length, 100) - len(made.token_ids)))
    step = [Scheduled(made, slot, length - 1, 1, True) for slot, made, length in rows]
    count = np.arange(len(rows), dtype=np.int32)
    batch = Batch(
        step=1,
        slots=np.array([slot for slot, _, _ in rows], np.int32),
        query_start_loc=np.arange(len(rows) + 1, dtype=np.int32),
        seq_lens=np.array([length for _, _, length in rows], np.int32),
        block_tables=(),
        token_ids=count,
        positions=count,
        logits_rows=count,
        row_seqs=count,
    )
    return columns.build(step, batch)


def test_rows_carry_their_sequences_wishes() -> None:
    columns = SamplingColumns(max_num_seqs=4, num_tokens=100)
    one = sequence(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, logprobs=2)
    two = sequence(seed=9, temperature=0.0, top_k=-1, logprobs=None)
    sampling = build(columns, (3, one, 4), (0, two, 11))
    assert sampling.temperature.tolist() == [0.5, 0.0]
    assert sampling.top_p.tolist() == [pytest.approx(0.9), 1.0]
    assert sampling.top_k.tolist() == [7, 0]
    assert sampling.min_p.tolist() == [pytest.approx(0.1), 0.0]
    assert sampling.draws.all()
    assert sampling.target_ids.tolist() == [-1, -1]
    assert sampling.num_logprobs == 2
    assert (sampling.edit_start, sampling.edit_ids, sampling.edit_mul, sampling.edit_add) == (None,) * 4
    assert (sampling.mask_rows, sampling.mask_bits) == (None, None), "a step that needs none carries none"
    expected = uniforms(np.array([1, 9], np.uint64), np.array([4, 11]))
    assert (sampling.uniform == expected).all()


def test_wishes_beyond_a_columns_range_are_its_largest_value() -> None:
    """min_tokens of 2**31 - 1 ended the engine; an infinite temperature makes 0 * inf of a forbidden id."""
    endless = sequence(temperature=1e308, min_tokens=2**31 - 1, max_tokens=None)
    sampling = build(SamplingColumns(max_num_seqs=1, num_tokens=100), (0, endless, 2**20))
    assert sampling.temperature.tolist() == [float(np.finfo(np.float32).max)]
    assert sampling.edit_ids is not None
    assert sampling.edit_ids.tolist() == [2]


def test_steps_of_the_same_greedy_sequences_share_one_object() -> None:
    """A runner need not look at its arrays again; anything that differs makes another one."""
    columns = SamplingColumns(max_num_seqs=2, num_tokens=100)
    one, two = sequence(temperature=0.0), sequence(temperature=0.0, logprobs=2)
    first = build(columns, (0, one, 4), (1, two, 4))
    assert build(columns, (0, one, 5), (1, two, 5)) is first
    alone = build(columns, (1, two, 6))
    assert alone.draws.tolist() == [True]
    assert build(columns, (0, one, 7), (1, two, 7)).num_logprobs == 2
    next_owner = sequence(temperature=0.0, logprobs=5)
    assert build(columns, (0, one, 8), (1, next_owner, 4)).num_logprobs == 5


def test_numbers_made_ahead_are_those_of_the_positions() -> None:
    """Also where sequences do not go on by one token each: one starts over, both jump, or one goes back."""
    columns = SamplingColumns(max_num_seqs=2, num_tokens=100)
    one, two = sequence(temperature=1.0), sequence(seed=9, temperature=0.5)
    seeds = np.array([1, 9], np.uint64)
    lengths = [(4 + i, 30 + i) for i in range(40)]
    for pair in (*lengths, (44, 30), (50, 36), (51, 37), (49, 35), (50, 37)):
        sampling = build(columns, (0, one, pair[0]), (1, two, pair[1]))
        assert (sampling.uniform == uniforms(seeds, np.array(pair))).all(), pair


def test_steps_that_draw_get_new_numbers_and_edits() -> None:
    columns = SamplingColumns(max_num_seqs=2, num_tokens=100)
    warm, edited = sequence(temperature=1.0), sequence(temperature=0.0, min_tokens=9)
    first = build(columns, (0, warm, 4))
    second = build(columns, (0, warm, 5))
    assert (first.uniform != second.uniform).all()
    assert second.temperature is first.temperature
    early, late = build(columns, (1, edited, 4)), build(columns, (1, edited, 30))
    assert early.edit_ids is not None
    assert late.edit_ids is None


def test_a_slots_next_owner_brings_its_own_wishes() -> None:
    columns = SamplingColumns(max_num_seqs=1, num_tokens=100)
    build(columns, (0, sequence(temperature=0.5, logprobs=5), 4))
    sampling = build(columns, (0, sequence(temperature=1.5), 4))
    assert sampling.temperature.tolist() == [1.5]
    assert sampling.num_logprobs == 0


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    columns = SamplingColumns(max_num_seqs=1, num_tokens=10)
    sampling = build(columns, (0, sequence(top_k=5000, logprobs=20), 4))
    assert sampling.top_k.tolist() == [10]
    assert sampling.num_logprobs == 10


def test_stop_ids_are_forbidden_until_min_tokens_are_there() -> None:
    columns = SamplingColumns(max_num_seqs=2, num_tokens=100)
    made = sequence(min_tokens=2, stop_ids=(40, 2, 5000))
    for drawn, forbidden in ((0, [2, 40]), (1, [2, 40]), (2, [])):
        sampling = build(columns, (0, made, 3 + drawn), (1, sequence(), 3 + drawn))
        ids = [] if sampling.edit_ids is None else sampling.edit_ids.tolist()
        assert ids == forbidden
        if forbidden:
            assert sampling.edit_start is not None
            assert sampling.edit_start.tolist() == [0, 2, 2]
            assert sampling.edit_mul is not None
            assert sampling.edit_add is not None
            assert (sampling.edit_mul == 1).all()
            assert (sampling.edit_add == -np.inf).all()


def test_a_step_without_rows_has_empty_columns() -> None:
    sampling = build(SamplingColumns(max_num_seqs=2, num_tokens=10))
    assert sampling.draws.shape == (0,)
    assert sampling.uniform.shape == (0, 2)
    assert sampling.num_logprobs == 0


def test_scored_rows_carry_the_prompts_next_token_and_draw_nothing() -> None:
    columns = SamplingColumns(max_num_seqs=2, num_tokens=100)
    made = Sequence("r", [5, 6, 7, 8], SamplingParams(prompt_logprobs=3, presence_penalty=1.0))
    other = sequence(logprobs=1)
    step = [Scheduled(other, 1, 3, 1, True), Scheduled(made, 0, 0, 4, True, 1, 2)]
    rows = np.array([0, 2, 3, 4], np.int32)
    batch = Batch(
        step=1,
        slots=np.array([1, 0], np.int32),
        query_start_loc=np.array([0, 1, 5], np.int32),
        seq_lens=np.array([4, 4], np.int32),
        block_tables=(),
        token_ids=np.arange(5, dtype=np.int32),
        positions=np.arange(5, dtype=np.int32),
        logits_rows=rows,
        row_seqs=np.array([0, 1, 1, 1], np.int32),
    )
    sampling = columns.build(step, batch)
    assert sampling.draws.tolist() == [True, False, False, True]
    assert sampling.target_ids.tolist() == [-1, 7, 8, -1]
    assert sampling.num_logprobs == 3


def test_allowed_tokens_are_a_mask_of_the_rows_that_want_one() -> None:
    columns = SamplingColumns(max_num_seqs=3, num_tokens=70)
    one = sequence(allowed_token_ids=(0, 33, 69))
    sampling = build(columns, (2, sequence(), 4), (0, one, 4))
    assert sampling.mask_rows is not None
    assert sampling.mask_bits is not None
    assert sampling.mask_rows.tolist() == [1]
    assert sampling.mask_bits.dtype == np.uint32
    assert sampling.mask_bits.tolist() == [[1, 2, 1 << 5]]
    assert sampling.edit_start is None
