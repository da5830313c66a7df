"""The fused sampler of the native kernels: `contract.Sampling` in one pass over each row of logits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trivet.contract import Sampling, StepOutput
from trivet.engine.sampler import count_tokens
from trivet_cpu.native_library import SAMPLING_ARRAYS, SamplingRows

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
    results = _results(num_rows, sampling.num_logprobs, num_extra)
    arrays = {name: getattr(sampling, name) for name in SAMPLING_ARRAYS} | results
    rows = SamplingRows(
        scratch=scratch.ctypes.data,
        scratch_stride=scratch.shape[-1],
        num_top=sampling.num_logprobs,
        num_extra=num_extra,
        num_masks=0 if sampling.mask_rows is None else len(sampling.mask_rows),
        mask_stride=0 if sampling.mask_bits is None else sampling.mask_bits.shape[1],
    )
    for name, array in arrays.items():
        if array is not None:
            setattr(rows, name, array.ctypes.data)
    for piece in pieces:
        rows.logits, rows.stride = piece.ctypes.data, piece.strides[0] // 4
        rows.num_rows, rows.num_tokens = piece.shape
        library.trivet_sample(pool, ctypes.byref(rows))
        rows.first_row += len(piece)
    return _output(results, sampling, row_seqs, num_seqs, step)


def _results(num_rows: int, num_top: int, num_extra: int) -> dict[str, NDArray[Any]]:
    """What the library fills; it writes every element."""
    return {
        "token_ids": np.empty(num_rows, np.int32),
        "is_finite": np.empty(num_rows, np.bool_),
        "refused": np.empty(num_rows, np.bool_),
        "logprobs": np.empty(num_rows, np.float32),
        "ranks": np.empty(num_rows, np.int32),
        "top_ids": np.empty((num_rows, num_top), np.int32),
        "top_logprobs": np.empty((num_rows, num_top), np.float32),
        "extra_logprobs": np.empty((num_rows, num_extra), np.float32),
    }


def _output(
    results: dict[str, NDArray[Any]], sampling: Sampling, row_seqs: Int32, num_seqs: int, step: int
) -> StepOutput:
    arrays: dict[str, object] = {name: value for name, value in results.items() if name != "refused"}
    if not sampling.num_logprobs:
        arrays["top_ids"] = arrays["top_logprobs"] = None
    if sampling.extra_ids is None:
        arrays["extra_logprobs"] = None
    return StepOutput(
        step=step,
        num_tokens=count_tokens(sampling.draws, results["refused"], row_seqs, num_seqs),
        pooled=None,
        device_time_s=0.0,
        **arrays,  # type: ignore[arg-type]
    )
