"""Weights as the device keeps them: whole or one rank's slice, in the model's dtype or quantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet_ascend.collectives import Collectives
from trivet_ascend.op_table import OpTable
from trivet_ascend.slices import Rank, Span
from trivet_ascend.stored_matrix import StoredMatrix
from trivet_ascend.weight_kinds import (
    GROUP_SIZE,
    PIECE_COLUMNS,
    WeightKind,
    kind_of,
    shares_embedding,
)


class Packed(Protocol):
    """What `AscendOps.pack` returns."""

    @property
    def size_bytes(self) -> int: ...

    def multiply(self, x: Tensor, table: OpTable) -> Tensor:
        """[T, in] -> [T, out], over all ranks, with the bias."""

    def look_up(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, hidden_size], over all ranks."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm's weight and bias, or none."""

    vector: Tensor
    bias: Tensor | None

    @property
    def size_bytes(self) -> int:
        return _nbytes(self.vector, self.bias)


@dataclass(frozen=True, slots=True)
class Plain:
    """[out, in] in the model's dtype."""

    weight: Tensor

    @property
    def size_bytes(self) -> int:
        return self.weight.nbytes

    def product(self, x: Tensor, table: OpTable) -> Tensor:
        return F.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class Int8:
    """[out, in] int8 with a scale a row; activations in 8 bits too, where `is_dynamic`."""

    weight: Tensor
    scales: Tensor  # float32 where is_dynamic, else of the model's dtype
    is_dynamic: bool

    @property
    def size_bytes(self) -> int:
        return _nbytes(self.weight, self.scales)

    def product(self, x: Tensor, table: OpTable) -> Tensor:
        quantised, x_scales = table.quantise_rows(x) if self.is_dynamic else (x, None)
        pieces = []
        for first in range(0, len(self.weight), PIECE_COLUMNS):
            weight = self.weight[first : first + PIECE_COLUMNS].t()
            scales = self.scales[first : first + PIECE_COLUMNS]
            if self.is_dynamic:
                pieces.append(table.matmul_w8a8(quantised, x_scales, weight, scales, None, x.dtype))
            else:
                pieces.append(table.matmul_weight_only(x, weight, scales, None, 0))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


@dataclass(frozen=True, slots=True)
class Int4:
    """Pieces of at most PIECE_COLUMNS outputs: (`pack_int4` of [in, out], scales, offsets).

    Scales and offsets are [in / GROUP_SIZE, out].
    """

    pieces: tuple[tuple[Tensor, Tensor, Tensor], ...]

    @property
    def size_bytes(self) -> int:
        return sum(_nbytes(*piece) for piece in self.pieces)

    def product(self, x: Tensor, table: OpTable) -> Tensor:
        products = [table.matmul_weight_only(x, *piece, GROUP_SIZE) for piece in self.pieces]
        return products[0] if len(products) == 1 else torch.cat(products, -1)


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix, its bias, and how the ranks put its product together."""

    matrix: Plain | Int8 | Int4
    bias: Tensor | None
    shard: str
    span: Span  # of the vocabulary
    num_rows: int  # over all ranks
    collectives: Collectives

    @property
    def size_bytes(self) -> int:
        return self.matrix.size_bytes + _nbytes(self.bias)

    def multiply(self, x: Tensor, table: OpTable) -> Tensor:
        """As `Packed.multiply`."""
        y = self.matrix.product(x, table)
        if self.shard == "row":
            y = self.collectives.sum(y)
        y = y if self.bias is None else y + self.bias
        if self.shard == "vocab":
            y = self.collectives.concatenate(y)[:, : self.num_rows]
        return y

    def look_up(self, token_ids: Tensor) -> Tensor:
        """As `Packed.look_up`; rows of other ranks count as zeros here."""
        assert isinstance(self.matrix, Plain)  # the embedding table is not quantised
        if self.span.size == self.num_rows:
            return F.embedding(token_ids, self.matrix.weight)
        mine = (token_ids >= self.span.start) & (token_ids < self.span.stop)
        rows = F.embedding((token_ids - self.span.start) * mine, self.matrix.weight)
        return self.collectives.sum(torch.where(mine[:, None], rows, torch.zeros_like(rows)))


class Packer:
    """Makes packed weights on one device; remembers their bytes."""

    def __init__(
        self, dtype: torch.dtype, weights: str, device: torch.device, rank: Rank, collectives: Collectives
    ) -> None:
        self.device = device
        self.size_bytes = 0
        self.table: OpTable | None = None  # packs 4-bit words; set before loading
        self._dtype, self._weights = dtype, weights
        self._rank, self._collectives = rank, collectives
        self._embedding: tuple[object, Linear] | None = None

    def pack(self, name: str, parts: Sequence[Any], shard: str, bias: Tensor | None) -> Any:
        """As `ops.Ops.pack`: vectors are tensors, matrices `StoredMatrix`."""
        first = parts[0]
        if not isinstance(first, StoredMatrix):
            return self._counted(Vector(self._put(first), None if bias is None else self._put(bias)))
        if name == "head" and self._embedding is not None and shares_embedding(self._weights):
            source, table = self._embedding
            if source is first and bias is None:  # tied: one table serves both
                return table
        spans = [self._rows(part, shard) for part in parts]
        columns = Span(0, first.shape[1])
        if shard == "row":
            columns = self._rank.part(first.shape[1])
        linear = Linear(
            self._matrix(name, parts, spans, columns),
            None if bias is None else self._bias(bias, parts, spans),
            shard,
            spans[0],
            sum(part.shape[0] for part in parts),
            self._collectives,
        )
        if name == "embed":
            self._embedding = (first, linear)
        return self._counted(linear)

    def finish(self) -> None:
        """Forget the source of the embedding, so that its file can be closed."""
        self._embedding = None

    def _counted(self, packed: Any) -> Any:
        self.size_bytes += packed.size_bytes
        return packed

    def _rows(self, part: StoredMatrix, shard: str) -> Span:
        return self._rank.part(part.shape[0]) if shard in ("column", "vocab") else Span(0, part.shape[0])

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype, copy=True).to(self.device)

    def _bias(self, bias: Tensor, parts: Sequence[StoredMatrix], spans: Sequence[Span]) -> Tensor:
        """The bias of all parts, end to end, cut as their rows are."""
        pieces = torch.split(bias, [part.shape[0] for part in parts])
        return self._put(
            torch.cat([piece[span.start : span.stop] for piece, span in zip(pieces, spans, strict=True)])
        )

    def _matrix(
        self, name: str, parts: Sequence[StoredMatrix], spans: Sequence[Span], columns: Span
    ) -> Plain | Int8 | Int4:
        num_rows = sum(span.size for span in spans)
        kind = kind_of(self._weights, name, [part.info.format for part in parts], num_rows, columns.size)
        if kind == WeightKind.W4A16:
            return self._int4(parts, spans, columns)
        rows = torch.cat([part.float32(span, columns) for part, span in zip(parts, spans, strict=True)])
        if name == "head":  # the ranks' logits are joined, so the last has as many as the others
            rows = F.pad(rows, (0, 0, 0, self._rank.height(parts[0].shape[0]) - num_rows))
        if kind == WeightKind.PLAIN:
            return Plain(self._put(rows))
        is_dynamic = kind == WeightKind.W8A8
        scales = (rows.abs().amax(1) / 127).clamp(min=1e-12)
        scales = scales if is_dynamic else scales.to(self._dtype)
        quantised = (rows / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        return Int8(quantised.to(self.device), scales.to(self.device), is_dynamic)

    def _int4(self, parts: Sequence[StoredMatrix], spans: Sequence[Span], columns: Span) -> Int4:
        assert self.table is not None  # the runner sets it before loading
        groups = [part.int4(span, columns) for part, span in zip(parts, spans, strict=True)]
        values, scales, offsets = (
            torch.cat([torch.from_numpy(array) for array in arrays]).t().contiguous()
            for arrays in zip(*((g.values, g.scales, g.offsets) for g in groups), strict=True)
        )
        pieces = []
        for first in range(0, values.shape[1], PIECE_COLUMNS):
            piece = slice(first, first + PIECE_COLUMNS)
            words = self.table.pack_int4(values[:, piece].to(torch.int32).to(self.device))
            pieces.append((words, self._put(scales[:, piece]), self._put(offsets[:, piece])))
        return Int4(tuple(pieces))


def _nbytes(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
