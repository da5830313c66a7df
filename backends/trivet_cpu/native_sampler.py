"""The fused sampler of the native kernels: `contract.Sampling` in one pass over each row of logits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from trivet.contract import Sampling, StepOutput
from trivet.engine.sampler import count_tokens
from trivet_cpu.native_library import SAMPLING_ARRAYS, SamplingRows

if TYPE_CHECKING:
    from trivet.contract import Float32, Int32


class NativeSampler:
    """One runner's sampler; what it prepared for a `Sampling` serves until another one comes."""

    def __init__(self, library: ctypes.CDLL, scratch: Float32) -> None:
        """Args: scratch: [threads, 2, >= V]."""
        self._library = library
        self._rows = SamplingRows(scratch=scratch.ctypes.data, scratch_stride=scratch.shape[-1])
        self._scratch = scratch
        self._sampling: Sampling | None = None  # whose arrays `_rows` points to

    def sample(
        self,
        pool: int | None,
        pieces: Iterable[Float32],
        sampling: Sampling,
        row_seqs: Int32,
        num_seqs: int,
        step: int,
    ) -> StepOutput:
        """As `engine.sampler.sample_pieces`.

        Args:
            pool: of `trivet_pool_create`.
            pieces: logits [<= max_logits_rows, V], rows contiguous in themselves.
        """
        results = self.begin(sampling, len(row_seqs))
        first_row = 0
        for piece in pieces:
            self._library.trivet_sample(pool, ctypes.byref(self.rows_of(piece, first_row)))
            first_row += len(piece)
        return results.output(step, row_seqs, num_seqs)

    def begin(self, sampling: Sampling, num_rows: int) -> Results:
        """Where the results of a step will be; it holds what the library reads of the step."""
        if sampling is not self._sampling:
            self._point_to(sampling)
        results = Results(sampling, num_rows)
        results.point(self._rows)
        return results

    def rows_of(self, piece: Float32, first_row: int) -> SamplingRows:
        """The rows of the step begun from `first_row` on, with logits `piece`; the next call changes it."""
        rows = self._rows
        rows.logits, rows.stride = piece.ctypes.data, piece.strides[0] // 4
        rows.num_rows, rows.num_tokens = piece.shape
        rows.first_row = first_row
        return rows

    def _point_to(self, sampling: Sampling) -> None:
        rows, before = self._rows, self._sampling
        for name in SAMPLING_ARRAYS:
            array = getattr(sampling, name)
            if before is None or array is not getattr(before, name):  # an address costs a microsecond
                setattr(rows, name, None if array is None else array.ctypes.data)
        rows.num_top = sampling.num_logprobs
        rows.num_extra = 0 if sampling.extra_ids is None else sampling.extra_ids.shape[1]
        rows.num_masks = 0 if sampling.mask_rows is None else len(sampling.mask_rows)
        rows.mask_stride = 0 if sampling.mask_bits is None else sampling.mask_bits.shape[1]
        self._sampling = sampling


class Results:
    """What the library fills, every element of it, in one piece of memory."""

    def __init__(self, sampling: Sampling, num_rows: int) -> None:
        self._sampling = sampling
        num_top = sampling.num_logprobs
        num_extra = 0 if sampling.extra_ids is None else sampling.extra_ids.shape[1]
        sizes = [num_rows] * 3 + [num_rows * num_top] * 2 + [num_rows * num_extra, -(-num_rows // 2)]
        ends = list(accumulate(sizes))
        words = np.empty(ends[-1], np.int32)
        pieces = [words[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        self.token_ids, self.ranks = pieces[0], pieces[1]
        self.logprobs = pieces[2].view(np.float32)
        self.top_ids = pieces[3].reshape(num_rows, num_top)
        self.top_logprobs = pieces[4].view(np.float32).reshape(num_rows, num_top)
        self.extra_logprobs = pieces[5].view(np.float32).reshape(num_rows, num_extra)
        flags = pieces[6].view(np.bool_)
        self.is_finite, self.refused = flags[:num_rows], flags[num_rows : 2 * num_rows]
        base = words.ctypes.data
        starts = [base + 4 * (end - size) for size, end in zip(sizes, ends, strict=True)]
        self._addresses = (*starts, starts[-1] + num_rows)

    def output(
        self,
        step: int,
        row_seqs: Int32,
        num_seqs: int,
        pooled: Float32 | None = None,
        device_time_s: float = 0.0,
    ) -> StepOutput:
        """Once all rows are filled."""
        sampling = self._sampling
        return StepOutput(
            step=step,
            token_ids=self.token_ids,
            num_tokens=count_tokens(sampling.draws, self.refused, row_seqs, num_seqs),
            is_finite=self.is_finite,
            logprobs=self.logprobs,
            ranks=self.ranks,
            top_ids=self.top_ids if sampling.num_logprobs else None,
            top_logprobs=self.top_logprobs if sampling.num_logprobs else None,
            extra_logprobs=None if sampling.extra_ids is None else self.extra_logprobs,
            pooled=pooled,
            device_time_s=device_time_s,
        )

    def point(self, rows: SamplingRows) -> None:
        """Let the library write here."""
        (
            rows.token_ids,
            rows.ranks,
            rows.logprobs,
            rows.top_ids,
            rows.top_logprobs,
            rows.extra_logprobs,
            rows.is_finite,
            rows.refused,
        ) = self._addresses
