"""A step as one buffer, and what is refused there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trivet.contract import Batch, BlockCopy
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import DrivenSequence, Work, arrays_of, build_batch, build_sampling
from trivet.runners.wire import flatten, restore, round_trip


def a_batch() -> Batch:
    work = Work(DrivenSequence([5, 6, 7], slot=2, blocks=[[4], [9]]), 3, (2,), (RowSampling(),))
    copies = (BlockCopy(1, from_host=False, to_host=True, pairs=np.array([[3, 4]], np.int32)),)
    batch, _ = build_batch(17, [work], lambda size: np.zeros(size, np.int32), copies, num_groups=2)
    return batch


def test_a_batch_comes_back_equal() -> None:
    batch = a_batch()
    back = round_trip(batch)
    assert (back.step, back.adapters, back.copies[0].to_host) == (17, None, True)
    assert len(back.block_tables) == 2
    for before, after in zip(arrays_of(batch), arrays_of(back), strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_a_sampling_comes_back_equal() -> None:
    row = RowSampling(temperature=0.5, edits=((3, 2.0, -1.0),), allowed=(1, 40))
    sampling = build_sampling([RowSampling(), row], 70, 3, np.array([5, 6], np.int32))
    back = round_trip(sampling)
    assert back.num_logprobs == 3
    for before, after in zip(arrays_of(sampling), arrays_of(back), strict=True):
        np.testing.assert_array_equal(before, after)


def test_the_buffer_alone_is_enough() -> None:
    batch = a_batch()
    buffer = bytearray(flatten(batch))
    batch.token_ids.fill(0)
    assert restore(buffer).token_ids.tolist() == [5, 6, 7]


@pytest.mark.parametrize("stranger", [[1, 2], object(), np.array([None])], ids=["list", "object", "objects"])
def test_anything_but_arrays_and_plain_values_is_refused_by_field(stranger: object) -> None:
    with pytest.raises(TypeError, match=r"Batch\.embeds"):
        flatten(replace(a_batch(), embeds=stranger))


def test_mask_bits_stand_where_the_contract_says() -> None:
    sampling = build_sampling([RowSampling(), RowSampling(allowed=(0, 33, 69))], 70)
    assert sampling.mask_rows is not None
    assert sampling.mask_bits is not None
    assert sampling.mask_rows.tolist() == [1]
    assert sampling.mask_bits.tolist() == [[1, 2, 1 << 5]]
