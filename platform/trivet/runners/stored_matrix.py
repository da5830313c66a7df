"""A weight matrix in its file, of which a rank reads the rows and columns it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trivet.errors import WeightsError
from trivet.runners.slices import Span
from trivet.weights.blocks import float16_field, nibbles
from trivet.weights.dequantize import dequantize
from trivet.weights.formats import FORMATS, row_bytes
from trivet.weights.reader import TensorReader

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """A piece of a matrix in 4 bits: (values + offsets) * scales, in groups of 32 along a row."""

    values: NDArray[np.int8]  # [rows, columns], -8 ... 7
    scales: NDArray[np.float32]  # [rows, columns / 32]
    offsets: NDArray[np.float32]

    @classmethod
    def joined(cls, pieces: Sequence[Int4Groups]) -> Int4Groups:
        """The rows of all pieces, one after the other."""
        return cls(
            np.concatenate([piece.values for piece in pieces]),
            np.concatenate([piece.scales for piece in pieces]),
            np.concatenate([piece.offsets for piece in pieces]),
        )


class StoredMatrix:
    """One tensor of two axes; nothing is read before it is asked for."""

    def __init__(self, reader: TensorReader, name: str, on_read: Callable[[str], None]) -> None:
        self._reader, self._on_read = reader, on_read
        self.info = reader.index[name]
        self.shape = self.info.shape

    def float32(self, rows: Span, columns: Span) -> Tensor:
        """[rows, columns] dequantised. Raises: WeightsError naming file and tensor."""
        try:
            values = dequantize(self._bytes(rows, columns), self.info.format, (rows.size, columns.size))
        except WeightsError as error:
            raise WeightsError(f"{self.info.file}: tensor {self.info.name!r}: {error}") from error
        self._on_read(self.info.name)
        return torch.from_numpy(np.require(values, requirements="W"))

    def int4(self, rows: Span, columns: Span) -> Int4Groups:
        """The same without loss, of a tensor in q4_0 (d * (q - 8)) or q4_1 (d * q + m)."""
        stored = self._bytes(rows, columns).reshape(-1, FORMATS[self.info.format].block_bytes)
        has_minimum = self.info.format == "q4_1"
        quants = nibbles(stored[:, 4 if has_minimum else 2 :]).astype(np.int8) - np.int8(8)
        scales = float16_field(stored, 0)
        offsets = np.zeros_like(scales)
        if has_minimum:
            minimum = float16_field(stored, 2)
            is_flat = scales == 0  # every value of the group is the minimum
            quants[is_flat[:, 0]] = 0
            offsets = np.where(is_flat, 1, minimum / np.where(is_flat, 1, scales) + 8)
            scales = np.where(is_flat, minimum, scales)
        self._on_read(self.info.name)
        shape = (rows.size, columns.size // FORMATS[self.info.format].block_size)
        return Int4Groups(
            quants.reshape(rows.size, columns.size),
            scales.reshape(shape),
            offsets.astype(np.float32).reshape(shape),
        )

    def stored(self, rows: Span, columns: Span) -> NDArray[np.uint8]:
        """The blocks as the file has them, [rows, bytes of the columns]. Raises: WeightsError."""
        found = self._bytes(rows, columns)
        self._on_read(self.info.name)
        return found

    def _bytes(self, rows: Span, columns: Span) -> NDArray[np.uint8]:
        """[rows, bytes of the columns], contiguous, rows in canonical order; other pages stay untouched."""
        kind = self.info.format
        block = FORMATS[kind].block_size
        if columns.start % block or columns.stop % block:
            raise WeightsError(
                f"{self.info.file}: tensor {self.info.name!r} is stored as {kind} in blocks of {block} and "
                f"cannot be cut at columns {columns.start} and {columns.stop}; use fewer ranks"
            )
        first, last = row_bytes(kind, columns.start), row_bytes(kind, columns.stop)
        wanted = np.arange(rows.start, rows.stop)
        if self.info.unpermute_heads:
            wanted = _file_row(wanted, self.shape[0] // self.info.unpermute_heads)
        elif first == 0 and columns.stop == self.shape[1]:
            return self._reader.raw(self.info.name)[rows.start : rows.stop]
        return np.ascontiguousarray(self._reader.raw(self.info.name)[wanted, first:last])


def _file_row(row: NDArray[np.int64], head_dim: int) -> NDArray[np.int64]:
    """Where GGUF's llama order has a row: [head, half, i] stands at [head, i, half]."""
    head, inside = np.divmod(row, head_dim)
    half, index = np.divmod(inside, head_dim // 2)
    found: NDArray[np.int64] = head * head_dim + index * 2 + half
    return found


class MappedSource:
    """`decoder.TensorSource` over mapped files: vectors as tensors, matrices unread. Counts bytes."""

    def __init__(self, reader: TensorReader, on_progress: Callable[[int, int], None]) -> None:
        self._reader, self._on_progress = reader, on_progress
        self._done: set[str] = set()
        self._done_bytes = 0

    def __contains__(self, name: object) -> bool:
        return name in self._reader.index

    def tensor(self, name: str) -> Tensor | StoredMatrix:
        """As `decoder.TensorSource`."""
        if len(self._reader.index[name].shape) == 2:
            return StoredMatrix(self._reader, name, self._count)
        values = torch.from_numpy(self._reader.float32(name))
        self._count(name)
        return values

    def _count(self, name: str) -> None:
        if name not in self._done:
            self._done.add(name)
            self._done_bytes += self._reader.index[name].size_bytes
        self._on_progress(self._done_bytes, self._reader.index.size_bytes)
