"""Weights as a GPU keeps them: in the model's dtype, or in the 4 or 8 bits of their file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet.models.torch_ops import DTYPES
from trivet.runners.sharded_weights import Matrix, MatrixSlice, Plain, nbytes
from trivet.weights.blocks import float16_field, nibbles
from trivet.weights.formats import FORMATS
from trivet_cuda.op_table import OpTable
from trivet_cuda.weight_kinds import GROUP_SIZE, WORD_VALUES, WeightKind, kind_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Grouped:
    """As `twins.group_matmul` takes it."""

    weight: Tensor
    scales: Tensor
    offsets: Tensor | None
    table: OpTable
    arch: int

    @property
    def size_bytes(self) -> int:
        return nbytes(self.weight, self.scales, self.offsets)

    def product(self, x: Tensor) -> Tensor:
        """As `Matrix.product`."""
        return self.table.group_matmul(x, self.weight, self.scales, self.offsets, self.arch)


class Layout:
    """Lays out matrices by the option `weights`; `sharded_weights.Packer` calls it."""

    def __init__(self, dtype: str, weights: str, device: torch.device, table: OpTable, arch: int) -> None:
        self._dtype, self._weights = dtype, weights
        self._device, self._table, self._arch = device, table, arch

    def __call__(self, part: MatrixSlice) -> Matrix:
        """Reads and converts the slice. Raises: WeightsError."""
        kind = kind_of(self._weights, self._dtype, part.name, part.formats, part.columns.size)
        if kind == WeightKind.PLAIN:
            rows = _unconverted(part) if DTYPES.keys() >= set(part.formats) else part.float32()
            return Plain(rows.to(DTYPES[self._dtype]).to(self._device))
        pieces = [
            _groups(matrix.stored(span, part.columns), matrix.info.format)
            for matrix, span in zip(part.parts, part.rows, strict=True)
        ]
        weight, scales, offsets = (torch.cat([piece[i] for piece in pieces]) for i in range(3))
        values = weight.t().contiguous() if kind == WeightKind.W8A16 else _words(weight.t())
        return Grouped(
            values.to(self._device),
            scales.t().contiguous().to(self._device),
            offsets.t().contiguous().to(self._device) if kind == WeightKind.W4A16 else None,
            self._table,
            self._arch,
        )


def _unconverted(part: MatrixSlice) -> Tensor:
    """The slice in its file's own type, [num_rows + num_padding_rows, columns].

    By way of float32 it would take three times its size of the host while it is read.
    """
    pieces = [
        torch.from_numpy(np.array(matrix.stored(span, part.columns))).view(DTYPES[matrix.info.format])
        for matrix, span in zip(part.parts, part.rows, strict=True)
    ]
    rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return F.pad(rows, (0, 0, 0, part.num_padding_rows)) if part.num_padding_rows else rows


def _groups(stored: NDArray[np.uint8], kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Values [rows, columns] as whole numbers, scales and offsets [rows, columns / GROUP_SIZE] in float16.

    q4_0 is d * (q - 8), q4_1 d * q + m, q8_0 d * q. All is as the file has it: -8 * d is exact in float16.
    """
    num_rows = len(stored)
    blocks = stored.reshape(-1, FORMATS[kind].block_bytes)
    scales = float16_field(blocks, 0)
    offsets = float16_field(blocks, 2) if kind == "q4_1" else -8 * scales
    values: NDArray[Any] = (
        np.ascontiguousarray(blocks[:, 2:]).view(np.int8)
        if kind == "q8_0"
        else nibbles(blocks[:, 4 if kind == "q4_1" else 2 :])
    )
    groups = values.reshape(num_rows, -1).shape[1] // GROUP_SIZE
    return (
        torch.from_numpy(values.reshape(num_rows, -1)),
        torch.from_numpy(scales.reshape(num_rows, groups)).half(),
        torch.from_numpy(offsets.reshape(num_rows, groups)).half(),
    )


def _words(values: Tensor) -> Tensor:
    """[K, N] of 0 ... 15 to int32 [K / 8, N], the lowest row in the lowest bits."""
    words = torch.zeros((values.shape[0] // WORD_VALUES, values.shape[1]), dtype=torch.int32)
    for place in range(WORD_VALUES):
        words |= values[place::WORD_VALUES].to(torch.int32) << (4 * place)
    return words
