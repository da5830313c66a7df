"""The fused sampler of the native kernels: `contract.Sampling` in one pass over each row of logits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trivet.contract import Sampling, StepOutput
from trivet.engine.sampler import count_tokens
from trivet_cpu.native_library import SAMPLING_ARRAYS, SAMPLING_RESULTS, SamplingRows

if TYPE_CHECKING:
    from trivet.contract import Float32, Int32


def sample_native(
    library: ctypes.CDLL,
    pool: int | None,
    pieces: Iterable[Float32],
    scratch: Float32,
    sampling: Sampling,
    row_seqs: Int32,
    num_seqs: int,
    step: int,
) -> StepOutput:
    """As `engine.sampler.sample_pieces`.

    Args:
        pieces: logits [<= max_logits_rows, V], rows contiguous in themselves.
        scratch: [threads, 2, >= V].
    """
    num_rows = len(row_seqs)
    num_extra = 0 if sampling.extra_ids is None else sampling.extra_ids.shape[1]
    results: dict[str, NDArray[np.generic]] = {
        "token_ids": np.zeros(num_rows, np.int32),
        "is_finite": np.ones(num_rows, np.bool_),
        "refused": np.zeros(num_rows, np.bool_),
        "logprobs": np.zeros(num_rows, np.float32),
        "ranks": np.zeros(num_rows, np.int32),
        "top_ids": np.zeros((num_rows, sampling.num_logprobs), np.int32),
        "top_logprobs": np.zeros((num_rows, sampling.num_logprobs), np.float32),
        "extra_logprobs": np.zeros((num_rows, num_extra), np.float32),
    }
    assert tuple(results) == SAMPLING_RESULTS
    columns = {
        name: np.ascontiguousarray(value)
        for name in SAMPLING_ARRAYS
        if (value := getattr(sampling, name)) is not None
    }
    rows = SamplingRows(
        scratch=scratch.ctypes.data,
        scratch_stride=scratch.shape[-1],
        num_top=sampling.num_logprobs,
        num_extra=num_extra,
        num_masks=0 if sampling.mask_rows is None else len(sampling.mask_rows),
        mask_stride=0 if sampling.mask_bits is None else sampling.mask_bits.shape[1],
        **{name: value.ctypes.data for name, value in {**columns, **results}.items()},
    )
    for piece in pieces:
        rows.logits, rows.stride = piece.ctypes.data, piece.strides[0] // 4
        rows.num_rows, rows.num_tokens = piece.shape
        library.trivet_sample(pool, ctypes.byref(rows))
        rows.first_row += len(piece)
    return _output(results, sampling, row_seqs, num_seqs, step)


def _output(
    results: dict[str, NDArray[np.generic]], sampling: Sampling, row_seqs: Int32, num_seqs: int, step: int
) -> StepOutput:
    arrays: dict[str, object] = {name: value for name, value in results.items() if name != "refused"}
    if not sampling.num_logprobs:
        arrays["top_ids"] = arrays["top_logprobs"] = None
    if sampling.extra_ids is None:
        arrays["extra_logprobs"] = None
    refused = results["refused"].astype(np.bool_)
    return StepOutput(
        step=step,
        num_tokens=count_tokens(sampling.draws, refused, row_seqs, num_seqs),
        pooled=None,
        device_time_s=0.0,
        **arrays,  # type: ignore[arg-type]
    )
