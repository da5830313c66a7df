"""Weights as an NPU keeps them: in the model's dtype, or quantised for one of torch-npu's products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trivet.runners.sharded_weights import Matrix, MatrixSlice, Plain, nbytes
from trivet_ascend.op_table import OpTable
from trivet_ascend.weight_kinds import GROUP_SIZE, PIECE_COLUMNS, WeightKind, kind_of


@dataclass(frozen=True, slots=True)
class Int8:
    """[out, in] int8 with a scale a row; activations in 8 bits too, where `is_dynamic`."""

    weight: Tensor
    scales: Tensor  # float32 where is_dynamic, else of the model's dtype
    is_dynamic: bool
    table: OpTable

    @property
    def size_bytes(self) -> int:
        return nbytes(self.weight, self.scales)

    def product(self, x: Tensor) -> Tensor:
        """As `Matrix.product`."""
        quantised, x_scales = self.table.quantise_rows(x) if self.is_dynamic else (x, None)
        pieces = []
        for first in range(0, len(self.weight), PIECE_COLUMNS):
            weight = self.weight[first : first + PIECE_COLUMNS].t()
            scales = self.scales[first : first + PIECE_COLUMNS]
            if self.is_dynamic:
                pieces.append(self.table.matmul_w8a8(quantised, x_scales, weight, scales, None, x.dtype))
            else:
                pieces.append(self.table.matmul_weight_only(x, weight, scales, None, 0))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


@dataclass(frozen=True, slots=True)
class Int4:
    """Pieces of at most PIECE_COLUMNS outputs: (`pack_int4` of [in, out], scales, offsets).

    Scales and offsets are [in / GROUP_SIZE, out].
    """

    pieces: tuple[tuple[Tensor, Tensor, Tensor], ...]
    table: OpTable

    @property
    def size_bytes(self) -> int:
        return sum(nbytes(*piece) for piece in self.pieces)

    def product(self, x: Tensor) -> Tensor:
        """As `Matrix.product`."""
        products = [self.table.matmul_weight_only(x, *piece, GROUP_SIZE) for piece in self.pieces]
        return products[0] if len(products) == 1 else torch.cat(products, -1)


class Layout:
    """Lays out matrices by the option `weights`; `sharded_weights.Packer` calls it."""

    def __init__(self, dtype: torch.dtype, weights: str, device: torch.device, table: OpTable) -> None:
        self.table = table  # the runner's, after its self-test
        self._dtype, self._weights, self._device = dtype, weights, device

    def __call__(self, part: MatrixSlice) -> Matrix:
        """Reads and converts the slice. Raises: WeightsError."""
        kind = kind_of(self._weights, part.name, part.formats, part.num_rows, part.columns.size)
        if kind == WeightKind.W4A16:
            return self._int4(part)
        rows = part.float32()
        if kind == WeightKind.PLAIN:
            return Plain(self._put(rows))
        is_dynamic = kind == WeightKind.W8A8
        scales = rows.abs().amax(1) / 127
        scales = scales if is_dynamic else scales.to(self._dtype)
        divisors = torch.where(scales > 0, scales.float(), 1.0)  # float16 has no scale below 6e-8
        quantised = (rows / divisors[:, None]).round().clamp(-127, 127).to(torch.int8)
        return Int8(quantised.to(self._device), scales.to(self._device), is_dynamic, self.table)

    def _int4(self, part: MatrixSlice) -> Int4:
        groups = part.int4()
        values, scales, offsets = (
            torch.from_numpy(array).t().contiguous()
            for array in (groups.values, groups.scales, groups.offsets)
        )
        pieces = []
        for first in range(0, values.shape[1], PIECE_COLUMNS):
            piece = slice(first, first + PIECE_COLUMNS)
            words = self.table.pack_int4(values[:, piece].to(torch.int32).to(self._device))
            pieces.append((words, self._put(scales[:, piece]), self._put(offsets[:, piece])))
        return Int4(tuple(pieces), self.table)

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype, copy=True).to(self._device)
