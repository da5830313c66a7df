"""The fused sampler against the NumPy reference, on every level that this CPU runs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import NO_TARGET, Sampling, StepOutput
from trivet.engine.sampler import sample_rows
from trivet_cpu.host import Host
from trivet_cpu.kernel_build import KernelCache, levels_of
from trivet_cpu.native_library import load_library
from trivet_cpu.native_sampler import NativeSampler

Float32 = NDArray[np.float32]
NUM_ROWS = 48
# Neither a multiple of 16 nor of 512: the ends of vectors and of partial sums are met.
VOCABULARIES = (5, 150, 5003)


@pytest.fixture(scope="module", params=levels_of(Host().arch()))
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return load_library(KernelCache().library(request.param))


@pytest.fixture(scope="module")
def pool(library: ctypes.CDLL) -> Iterator[int]:
    pool = library.trivet_pool_create(2)
    yield pool
    library.trivet_pool_destroy(pool)


def _logits(vocab_size: int, seed: int) -> Float32:
    """Rows from flat to steep, on a grid: many logits are equal."""
    generator = np.random.default_rng(seed)
    steepness = generator.uniform(0.2, 6, (NUM_ROWS, 1))
    logits = generator.normal(size=(NUM_ROWS, vocab_size)) * steepness
    return (np.round(logits * 8) / 8).astype(np.float32)


def _sampling(vocab_size: int, seed: int) -> Sampling:
    """Every column in use, each in some of the rows."""
    generator = np.random.default_rng(1000 + seed)

    def some(values: NDArray[np.generic], share: float, otherwise: float) -> NDArray[np.generic]:
        return np.where(generator.random(NUM_ROWS) < share, values, values.dtype.type(otherwise))

    def columns(count: int) -> NDArray[np.int32]:
        return generator.integers(0, vocab_size, count).astype(np.int32)

    num_edits = generator.integers(0, min(4, vocab_size), NUM_ROWS)
    edit_ids = [generator.permutation(vocab_size)[:count] for count in num_edits]
    masked = np.flatnonzero(generator.random(NUM_ROWS) < 0.3).astype(np.int32)
    num_words = -(-vocab_size // 32)
    uniform = generator.random((NUM_ROWS, 2)).astype(np.float32)
    return Sampling(
        draws=generator.random(NUM_ROWS) < 0.9,
        target_ids=some(columns(NUM_ROWS), 0.4, NO_TARGET).astype(np.int32),
        temperature=some(generator.uniform(0.1, 2, NUM_ROWS).astype(np.float32), 0.8, 0).astype(np.float32),
        top_k=some(generator.integers(1, 60, NUM_ROWS).astype(np.int32), 0.4, 0).astype(np.int32),
        top_p=some(generator.uniform(0.1, 1, NUM_ROWS).astype(np.float32), 0.4, 1).astype(np.float32),
        min_p=some(generator.uniform(0, 0.3, NUM_ROWS).astype(np.float32), 0.3, 0).astype(np.float32),
        uniform=uniform,
        num_logprobs=min(4, vocab_size),
        extra_ids=columns(NUM_ROWS * 2).reshape(NUM_ROWS, 2),
        edit_start=np.concatenate([[0], np.cumsum(num_edits)]).astype(np.int32),
        edit_ids=np.concatenate(edit_ids).astype(np.int32),
        edit_mul=generator.uniform(0.8, 1.5, num_edits.sum()).astype(np.float32),
        edit_add=np.where(generator.random(num_edits.sum()) < 0.2, -np.inf, 0.5).astype(np.float32),
        mask_rows=masked,
        mask_bits=generator.integers(0, 2**32, (len(masked), num_words), dtype=np.uint32),
    )


ROW_SEQS = np.repeat(np.arange(NUM_ROWS // 3), 3).astype(np.int32)


def _native(library: ctypes.CDLL, pool: int, logits: Float32, sampling: Sampling, height: int) -> StepOutput:
    """In pieces of `height` rows, each wider than the vocabulary, as a padded head gives them."""
    wide = np.full((len(logits), logits.shape[1] + 7), np.nan, np.float32)
    wide[:, : logits.shape[1]] = logits
    pieces = (wide[first : first + height, : logits.shape[1]] for first in range(0, len(logits), height))
    scratch = np.empty((4, logits.shape[1]), np.float32)
    return NativeSampler(library, scratch).sample(pool, pieces, sampling, ROW_SEQS, NUM_ROWS // 3, 1)


def _expect_equal(found: StepOutput, expected: StepOutput) -> None:
    for name in ("token_ids", "num_tokens", "is_finite", "ranks", "top_ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in ("logprobs", "top_logprobs", "extra_logprobs"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("vocab_size", VOCABULARIES)
def test_every_row_equals_the_reference(library: ctypes.CDLL, pool: int, vocab_size: int, seed: int) -> None:
    logits, sampling = _logits(vocab_size, seed), _sampling(vocab_size, seed)
    expected = sample_rows(logits, sampling, ROW_SEQS, NUM_ROWS // 3, 1)
    _expect_equal(_native(library, pool, logits, sampling, 11), expected)


def test_a_sampler_keeps_nothing_of_another_sampling(library: ctypes.CDLL, pool: int) -> None:
    logits, scratch = _logits(150, 1), np.empty((4, 150), np.float32)
    full = _sampling(150, 1)
    bare = Sampling(
        full.draws, full.target_ids, full.temperature, full.top_k, full.top_p, full.min_p, full.uniform
    )
    sampler = NativeSampler(library, scratch)
    for sampling in (full, bare, bare, full):
        found = sampler.sample(pool, [logits], sampling, ROW_SEQS, NUM_ROWS // 3, 1)
        expected = sample_rows(logits, sampling, ROW_SEQS, NUM_ROWS // 3, 1)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_array_equal(found.num_tokens, expected.num_tokens)
        assert (found.top_ids is None) == (expected.top_ids is None)


def test_rows_that_are_not_finite_are_marked_and_spoil_no_other(library: ctypes.CDLL, pool: int) -> None:
    logits, sampling = _logits(150, 3), replace(_sampling(150, 3), temperature=np.ones(NUM_ROWS, np.float32))
    logits[1, 149], logits[7, 0], logits[9, 16] = np.nan, np.inf, -np.inf
    found = _native(library, pool, logits, sampling, NUM_ROWS)
    expected = sample_rows(logits, sampling, ROW_SEQS, NUM_ROWS // 3, 1)
    assert not found.is_finite[[1, 7, 9]].any()
    assert found.is_finite.sum() >= NUM_ROWS - 6
    _expect_equal(found, expected)


def test_uniform_numbers_at_both_ends_draw_tokens_that_have_a_probability(
    library: ctypes.CDLL, pool: int
) -> None:
    logits, plain = _logits(5003, 4), _sampling(5003, 4)
    for number in (0.0, np.nextafter(np.float32(1), np.float32(0))):
        sampling = replace(
            plain,
            temperature=np.ones(NUM_ROWS, np.float32),
            top_k=np.full(NUM_ROWS, 3, np.int32),
            target_ids=np.full(NUM_ROWS, NO_TARGET, np.int32),
            draws=np.ones(NUM_ROWS, np.bool_),
            uniform=np.full((NUM_ROWS, 2), number, np.float32),
        )
        found = _native(library, pool, logits, sampling, NUM_ROWS)
        _expect_equal(found, sample_rows(logits, sampling, ROW_SEQS, NUM_ROWS // 3, 1))
