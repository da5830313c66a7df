"""Each native kernel by itself over NumPy arrays, for models that the step does not know.

Thin: arrays are float32 and contiguous, results are new arrays, and nothing is kept. A torch tensor on the
CPU comes as `tensor.numpy()`, which shares its memory.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from trivet_cpu.native_library import RopeTable, Weight
from trivet_cpu.native_plan import ACTIVATIONS, LANES

if TYPE_CHECKING:
    from trivet.contract import Float32, Int32


class NativeFunctions:
    """The kernels of one library on one pool of threads."""

    def __init__(self, library: ctypes.CDLL, pool: int) -> None:
        self._library, self._pool = library, pool

    def embed(self, weight: Weight, token_ids: Int32, columns: int, scale: float = 1.0) -> Float32:
        """[T] -> scale * rows [T, columns] of a packed table."""
        out = np.empty((len(token_ids), columns), np.float32)
        self._library.trivet_embed(
            self._pool,
            ctypes.byref(weight),
            token_ids.ctypes.data,
            len(token_ids),
            columns,
            scale,
            out.ctypes.data,
        )
        return out

    def rms_norm(self, x: Float32, weight: Float32, eps: float) -> Float32:
        """Rows x [R, size] / sqrt(mean(x^2) + eps) * weight [size]; size a multiple of 16."""
        _check(x, weight)
        out = np.empty_like(x)
        self._library.trivet_rms_norm(
            self._pool, x.ctypes.data, weight.ctypes.data, *x.shape, eps, out.ctypes.data
        )
        return out

    def rope(self, x: Float32, positions: Int32, frequencies: Float32, factor: float = 1.0) -> Float32:
        """Heads x [T, heads, head_dim] turned: pairs (i, i + dim / 2), dim = 2 * len(frequencies)."""
        _check(x)
        out, table = x.copy(), np.empty((len(x), 2 * len(frequencies)), np.float32)
        rope = RopeTable(
            frequencies=frequencies.ctypes.data, table=table.ctypes.data, dim=table.shape[1], factor=factor
        )
        self._library.trivet_rope(
            self._pool, out.ctypes.data, positions.ctypes.data, ctypes.byref(rope), *x.shape
        )
        return out

    def activation(self, gate: Float32, up: Float32 | None, kind: str) -> Float32:
        """activation(gate [R, size]) * up; `kind` as `spec.MLP.activation`; size a multiple of 16."""
        _check(gate, *(() if up is None else (up,)))
        out = np.empty_like(gate)
        self._library.trivet_activate(
            self._pool,
            gate.ctypes.data,
            None if up is None else up.ctypes.data,
            *gate.shape,
            ACTIVATIONS[kind],
            out.ctypes.data,
        )
        return out


def _check(*arrays: Float32) -> None:
    """Our own callers' duty: a kernel reads whole vectors of what it is given."""
    for array in arrays:
        assert array.dtype == np.float32, array.dtype
        assert array.flags.c_contiguous, "rows are not contiguous"
        assert array.shape[-1] % LANES == 0, f"{array.shape[-1]} is no multiple of {LANES}"
