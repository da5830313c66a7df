"""The CPU runners' own arithmetic of pooling; what it is for is tested by the contract suite."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from trivet_cpu.pooling import floats_at, sum_of_normed


def test_the_sum_of_normed_rows_is_torch_s() -> None:
    """To see its cost: 256 rows of 4096 take 0.3 ms, and their step in a model of that width a second."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((40, 96), dtype=np.float32) * 9
    weight = generator.standard_normal(96, dtype=np.float32)
    wanted = torch.nn.functional.rms_norm(torch.from_numpy(rows), (96,), torch.from_numpy(weight), 1e-5)
    padded = np.full((40, 128), np.nan, np.float32)
    padded[:, :96] = rows
    np.testing.assert_allclose(
        sum_of_normed(padded[:, :96], weight, 1e-5), wanted.sum(dim=0).numpy(), rtol=1e-4, atol=1e-4
    )


def test_memory_of_the_library_is_seen_and_not_copied() -> None:
    memory = (ctypes.c_float * 6)(*range(6))
    view = floats_at(ctypes.addressof(memory), (2, 3))
    memory[4] = 9.0
    np.testing.assert_array_equal(view, [[0, 1, 2], [3, 9, 5]])
