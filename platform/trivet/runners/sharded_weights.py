"""Packed weights of one rank: which slice it reads, and how the ranks put a product together.

How a slice is laid out on the device is the backend's: it gives `Packer` a function for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from trivet.models.ops import Delta
from trivet.runners.collectives import Collectives
from trivet.runners.slices import Rank, Span
from trivet.runners.stored_matrix import Int4Groups, StoredMatrix


class Matrix(Protocol):
    """One rank's part of a matrix as its device keeps it."""

    @property
    def size_bytes(self) -> int: ...

    def product(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""


@dataclass(frozen=True, slots=True)
class MatrixSlice:
    """What one rank keeps of the matrices that are packed under one name; nothing is read yet."""

    name: str  # as in `ops.Ops.pack`: "embed", "head", "layers.3.qkv"
    parts: tuple[StoredMatrix, ...]
    rows: tuple[Span, ...]  # of each part
    columns: Span
    num_padding_rows: int = 0  # zeros behind a part of the vocabulary, so that all ranks have as many logits

    @property
    def num_rows(self) -> int:
        """Without padding."""
        return sum(span.size for span in self.rows)

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(part.info.format for part in self.parts)

    def float32(self) -> Tensor:
        """[num_rows + num_padding_rows, columns]. Raises: WeightsError naming file and tensor."""
        pieces = [part.float32(span, self.columns) for part, span in zip(self.parts, self.rows, strict=True)]
        return F.pad(torch.cat(pieces), (0, 0, 0, self.num_padding_rows))

    def int4(self) -> Int4Groups:
        """The 4 bits of a GGUF file without loss, where nothing is padded. Raises: WeightsError."""
        assert not self.num_padding_rows
        pieces = [part.int4(span, self.columns) for part, span in zip(self.parts, self.rows, strict=True)]
        return Int4Groups.joined(pieces)


@dataclass(frozen=True, slots=True)
class Vector:
    """A norm's weight and bias, or none."""

    vector: Tensor
    bias: Tensor | None

    @property
    def size_bytes(self) -> int:
        return nbytes(self.vector, self.bias)


@dataclass(frozen=True, slots=True)
class Plain:
    """[out, in] in the model's dtype."""

    weight: Tensor

    @property
    def size_bytes(self) -> int:
        return self.weight.nbytes

    def product(self, x: Tensor) -> Tensor:
        """As `Matrix.product`."""
        return F.linear(x, self.weight)


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix, its bias, and how the ranks put its product together."""

    matrix: Matrix
    bias: Tensor | None
    shard: str
    span: Span  # of the vocabulary
    num_rows: int  # over all ranks
    collectives: Collectives

    @property
    def size_bytes(self) -> int:
        return self.matrix.size_bytes + nbytes(self.bias)

    def multiply(self, x: Tensor, delta: Delta | None = None) -> Tensor:
        """[T, in] -> [T, out], over all ranks, with the bias and what adapters add."""
        y = self.matrix.product(x)
        if delta is not None:  # of this rank's rows or columns, so that one sum serves both
            delta.add_to(y, x)
        if self.shard == "row":
            y = self.collectives.sum(y)
        y = y if self.bias is None else y + self.bias
        if self.shard == "vocab":
            y = self.collectives.concatenate(y)[:, : self.num_rows]
        return y

    def look_up(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, hidden_size], over all ranks; rows of other ranks count as zeros here."""
        assert isinstance(self.matrix, Plain)  # the embedding table is not quantised
        if self.span.size == self.num_rows:
            return F.embedding(token_ids, self.matrix.weight)
        mine = (token_ids >= self.span.start) & (token_ids < self.span.stop)
        rows = F.embedding((token_ids - self.span.start) * mine, self.matrix.weight)
        return self.collectives.sum(torch.where(mine[:, None], rows, torch.zeros_like(rows)))


class Packer:
    """Makes packed weights on one device; remembers their bytes."""

    def __init__(
        self,
        dtype: torch.dtype,
        device: torch.device,
        rank: Rank,
        collectives: Collectives,
        lay_out: Callable[[MatrixSlice], Matrix],
        *,
        shares_embedding: bool,
        vector_dtype: torch.dtype | None = None,
    ) -> None:
        """With `shares_embedding` a tied head is the embedding table itself, which then is `Plain`.

        Norms are kept in `vector_dtype`: the model's where an operation takes no other.
        """
        self.device = device
        self.size_bytes = 0
        self._dtype, self._vector_dtype, self._lay_out = dtype, vector_dtype or dtype, lay_out
        self._rank, self._collectives = rank, collectives
        self._shares_embedding = shares_embedding
        self._embedding: tuple[object, Linear] | None = None

    def pack(self, name: str, parts: Sequence[Any], shard: str, bias: Tensor | None) -> Any:
        """As `ops.Ops.pack`: vectors are tensors, matrices `StoredMatrix`."""
        first = parts[0]
        if not isinstance(first, StoredMatrix):
            return self._counted(Vector(self._norm(first), None if bias is None else self._norm(bias)))
        if name == "head" and self._embedding is not None and self._shares_embedding:
            source, table = self._embedding
            if source is first and bias is None:  # tied: one table serves both
                return table
        spans = tuple(self._rows(part, shard) for part in parts)
        linear = Linear(
            self._lay_out(self._slice(name, parts, spans, shard)),
            None if bias is None else self._bias(bias, parts, spans, shard),
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

    def _slice(
        self, name: str, parts: Sequence[StoredMatrix], spans: tuple[Span, ...], shard: str
    ) -> MatrixSlice:
        width = parts[0].shape[1]
        columns = self._rank.part(width) if shard == "row" else Span(0, width)
        return MatrixSlice(name, tuple(parts), spans, columns, self._padding(parts[0], spans[0], shard))

    def _padding(self, part: StoredMatrix, span: Span, shard: str) -> int:
        """Logits are joined, so the last rank has as many as the others; a tied head is the embedding."""
        return self._rank.height(part.shape[0]) - span.size if shard == "vocab" else 0

    def _norm(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._vector_dtype, copy=True).to(self.device)

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype, copy=True).to(self.device)

    def _bias(self, bias: Tensor, parts: Sequence[StoredMatrix], spans: Sequence[Span], shard: str) -> Tensor:
        """The bias of all parts, end to end, cut and padded as their rows are."""
        pieces = torch.split(bias, [part.shape[0] for part in parts])
        mine = torch.cat([piece[span.start : span.stop] for piece, span in zip(pieces, spans, strict=True)])
        return self._put(F.pad(mine, (0, self._padding(parts[0], spans[0], shard))))


def nbytes(*tensors: Tensor | None) -> int:
    """Of all together; None has none."""
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
