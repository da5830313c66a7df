"""The sampler in torch gives what the NumPy reference gives, filter by filter."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from trivet.contract import NO_TARGET, Batch, Sampling, StepOutput
from trivet.contract_suite.nothing_waits import NothingWaits
from trivet.engine.sampler import sample_rows
from trivet.runners.warm_up import edited, warm_up_sampling
from trivet_cuda.device_sampler import draw, newest_tokens
from trivet_cuda.memory_plan import SAMPLER_COPIES, SORT_COPIES

ROWS, VOCAB = 12, 1000
CPU = torch.device("cpu")


def columns(num_rows: int = ROWS, **changes: Any) -> Sampling:
    uniform = np.random.default_rng(1).random((num_rows, 2), np.float32)
    base = Sampling(
        draws=np.ones(num_rows, np.bool_),
        target_ids=np.full(num_rows, NO_TARGET, np.int32),
        temperature=np.ones(num_rows, np.float32),
        top_k=np.zeros(num_rows, np.int32),
        top_p=np.ones(num_rows, np.float32),
        min_p=np.zeros(num_rows, np.float32),
        uniform=uniform,
    )
    return replace(base, **changes)


def logits(num_rows: int = ROWS) -> np.ndarray[Any, Any]:
    """Rounded, so that there are equal ones."""
    values = np.random.default_rng(0).normal(0, 2, (num_rows, VOCAB)).astype(np.float32)
    return np.round(values, 1)


def batch_of(row_seqs: list[int]) -> Batch:
    num_seqs = max(row_seqs, default=-1) + 1
    one = np.ones(num_seqs, np.int32)
    rows = np.array(row_seqs, np.int32)
    return Batch(
        step=5,
        slots=(np.arange(num_seqs, dtype=np.int32) * 2 + 1),
        query_start_loc=np.arange(num_seqs + 1, dtype=np.int32),
        seq_lens=one,
        block_tables=(one[:, None],),
        token_ids=one,
        positions=one,
        logits_rows=rows,
        row_seqs=rows,
    )


def compared(
    values: np.ndarray[Any, Any], sampling: Sampling, row_seqs: list[int] | None = None, piece: int = 5
) -> tuple[StepOutput, StepOutput]:
    """By the device's sampler in pieces of `piece` rows, which waits for nothing, and by the reference."""
    batch = batch_of(list(range(len(values))) if row_seqs is None else row_seqs)
    pieces = torch.from_numpy(values.copy()).split(piece)
    with NothingWaits():
        drawn = draw(pieces, sampling, CPU)
        newest_tokens(torch.zeros(2 * len(values) + 2, dtype=torch.int32), drawn, batch, sampling)
    found = drawn.output(batch, sampling)
    wanted = sample_rows(values, sampling, batch.row_seqs, len(batch.slots))
    return found, wanted


def expect_equal(found: StepOutput, wanted: StepOutput) -> None:
    np.testing.assert_array_equal(found.is_finite, wanted.is_finite)
    np.testing.assert_array_equal(found.token_ids, wanted.token_ids)
    np.testing.assert_array_equal(found.num_tokens, wanted.num_tokens)
    np.testing.assert_array_equal(found.ranks, wanted.ranks)
    np.testing.assert_allclose(found.logprobs, wanted.logprobs, atol=2e-5)
    for name in ("top_ids", "top_logprobs", "extra_logprobs"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_allclose(one, other, atol=2e-5, err_msg=name)


VARIED = np.linspace(0.05, 1.5, ROWS).astype(np.float32)
CASES: dict[str, dict[str, Any]] = {
    "temperature alone": {"temperature": VARIED},
    "greedy and not": {"temperature": np.where(np.arange(ROWS) % 2, 0, VARIED).astype(np.float32)},
    "a temperature near zero": {"temperature": np.full(ROWS, 1e-30, np.float32)},
    "top_k": {"top_k": np.array([0, 1, 2, 3, 5, 8, 50, 999, 1000, 2000, 1, 4], np.int32)},
    "top_p": {"top_p": np.linspace(0.01, 1, ROWS).astype(np.float32)},
    "min_p": {"min_p": np.linspace(0, 1, ROWS).astype(np.float32)},
    "all three": {
        "top_k": np.arange(ROWS, dtype=np.int32) * 7,
        "top_p": np.linspace(0.3, 1, ROWS).astype(np.float32),
        "min_p": np.linspace(0, 0.2, ROWS).astype(np.float32),
    },
    "nothing of top_p": {"top_p": np.zeros(ROWS, np.float32)},
    "every limit at its end": {
        "temperature": np.full(ROWS, 1e-6, np.float32),
        "top_k": np.full(ROWS, np.iinfo(np.int32).max, np.int32),
        "top_p": (np.arange(ROWS) % 2).astype(np.float32),
        "min_p": np.ones(ROWS, np.float32),
    },
    "a uniform of zero": {"uniform": np.zeros((ROWS, 2), np.float32)},
    "a uniform just below one": {"uniform": np.full((ROWS, 2), np.nextafter(np.float32(1), 0))},
    "scores only": {"draws": np.zeros(ROWS, np.bool_), "target_ids": np.arange(ROWS, dtype=np.int32) * 9},
    "top logprobs, of which many are equal": {"num_logprobs": 20},
    "extra logprobs": {"extra_ids": np.arange(ROWS * 3, dtype=np.int32).reshape(ROWS, 3)},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_rows_are_drawn_as_by_the_reference(changes: dict[str, Any]) -> None:
    expect_equal(*compared(logits(), columns(**changes)))


def test_edits_and_masks_come_before_the_temperature() -> None:
    generator = np.random.default_rng(4)
    ids = np.concatenate([generator.choice(VOCAB, 30, replace=False) for _ in range(ROWS - 1)]).astype(
        np.int32
    )
    starts = np.concatenate([np.arange(ROWS) * 30, [30 * (ROWS - 1)]]).astype(np.int32)
    add = generator.normal(0, 3, len(ids)).astype(np.float32)
    add[::7] = -np.inf
    bits = generator.integers(0, 1 << 32, (3, -(-VOCAB // 32)), dtype=np.uint32)
    sampling = columns(
        edit_start=starts,
        edit_ids=ids,
        edit_mul=generator.uniform(1, 2, len(ids)).astype(np.float32),
        edit_add=add,
        mask_rows=np.array([0, 4, 5], np.int32),
        mask_bits=bits,
    )
    found, wanted = compared(logits(), sampling)
    expect_equal(found, wanted)
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
    assert all(allowed[i, found.token_ids[row]] for i, row in enumerate((0, 4, 5)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_taken_up_to_the_first_that_is_refused(temperature: float) -> None:
    values = logits()
    row_seqs = [0, 0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 3]
    targets = np.full(ROWS, NO_TARGET, np.int32)
    best = values.argmax(1)
    targets[[0, 1, 2]] = best[[0, 1, 2]]
    targets[[4, 5]] = best[4], (best[5] + 1) % VOCAB
    targets[[8, 9, 10]] = (best[8] + 1) % VOCAB, best[9], best[10]
    sampling = columns(target_ids=targets, temperature=np.full(ROWS, temperature, np.float32))
    found, wanted = compared(values, sampling, row_seqs)
    expect_equal(found, wanted)
    if temperature == 0:
        assert found.num_tokens.tolist() == [4, 2, 1, 1]
    batch = batch_of(row_seqs)
    newest = torch.full((10,), -5, dtype=torch.int32)
    newest_tokens(newest, draw([torch.from_numpy(values)], sampling, CPU), batch, sampling)
    firsts = [row_seqs.index(seq) for seq in range(4)]
    lasts = [first + count - 1 for first, count in zip(firsts, found.num_tokens.tolist(), strict=True)]
    assert newest[batch.slots].tolist() == found.token_ids[lasts].tolist()
    assert newest[[0, 2, 4, 6, 8, 9]].tolist() == [-5] * 6


def test_the_newest_token_of_a_sequence_that_only_scores_stays() -> None:
    sampling = columns(draws=np.arange(ROWS) % 3 == 0)
    values, batch = logits(), batch_of(list(range(ROWS)))
    newest = torch.full((2 * ROWS + 1,), -5, dtype=torch.int32)
    drawn = draw([torch.from_numpy(values)], sampling, CPU)
    newest_tokens(newest, drawn, batch, sampling)
    expected = np.where(sampling.draws, drawn.tokens.numpy(), -5)
    assert newest[batch.slots].tolist() == expected.tolist()


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    values = logits()
    values[3, 17], values[7, 5], values[9, 2] = np.nan, np.inf, -np.inf
    found, wanted = compared(values, columns(num_logprobs=3))
    others = [row for row in range(ROWS) if row not in (3, 7, 9)]
    assert np.flatnonzero(found.is_finite).tolist() == others
    assert np.flatnonzero(wanted.is_finite).tolist() == others
    assert found.token_ids[[3, 7, 9]].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(found.token_ids[others], wanted.token_ids[others])
    np.testing.assert_allclose(found.logprobs[others], wanted.logprobs[others], atol=2e-5)


def test_a_mask_that_allows_nothing_makes_the_row_not_finite() -> None:
    bits = np.zeros((1, -(-VOCAB // 32)), np.uint32)
    found, _ = compared(logits(), columns(mask_rows=np.array([2], np.int32), mask_bits=bits))
    assert found.is_finite.tolist() == [row != 2 for row in range(ROWS)]


def test_no_rows_give_empty_arrays() -> None:
    sampling = columns(0, num_logprobs=4, extra_ids=np.zeros((0, 2), np.int32))
    found = draw([], sampling, CPU).output(batch_of([]), sampling)
    assert found.token_ids.shape == (0,)
    assert found.top_ids is not None
    assert found.top_ids.shape == (0, 4)
    assert found.extra_logprobs is not None
    assert found.extra_logprobs.shape == (0, 2)


class MostBytes(TorchDispatchMode):
    """What results hold at most at once, and what a sort on CUDA takes beside them."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self.num_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._sizes:
                self._sizes[storage.data_ptr()] = storage.nbytes()
                weakref.finalize(storage, self._sizes.pop, storage.data_ptr(), None)
        scratch = SORT_COPIES * args[0].nbytes if "sort" in function.name() else 0
        self.num_bytes = max(self.num_bytes, sum(self._sizes.values()) + scratch)
        return result


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_draw_takes_no_more_than_the_plan_has_for_it(is_edited: bool) -> None:
    num_rows, num_tokens = 32, 4096
    sampling = warm_up_sampling(num_rows, num_tokens)
    sampling = edited(sampling, num_tokens) if is_edited else sampling
    piece = torch.randn(num_rows, num_tokens)
    with MostBytes() as most:
        draw([piece], sampling, CPU)
    taken = 1 + most.num_bytes / piece.nbytes
    assert SAMPLER_COPIES / 2 < taken < SAMPLER_COPIES
