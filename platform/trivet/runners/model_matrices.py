"""Every matrix that the generic decoder packs, with its size, as data for memory plans; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trivet.errors import Unsupported
from trivet.models.spec import MLP, ModelSpec
from trivet.runners.slices import Rank
from trivet.weights.formats import FORMATS
from trivet.weights.index import WeightIndex

# Bytes of a matrix without bias: its name, the formats of its parts in the file, its rows and columns.
MatrixBytes = Callable[[str, Sequence[str], int, int], int]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One matrix of `Decoder.load`, over all ranks."""

    name: str  # as in `ops.Ops.pack`: "embed", "head", "layers.3.qkv"
    parts: tuple[str, ...]  # canonical names without `.weight`
    num_rows: int
    num_columns: int
    shard: str
    has_bias: bool = False


def packed_matrices(spec: ModelSpec) -> Iterator[PackedMatrix]:
    """Of a dense model. A tied head has the embedding's part."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    yield PackedMatrix("embed", ("embed",), vocab, hidden, "vocab")
    head = "embed" if spec.tie_embeddings else "head"
    yield PackedMatrix("head", (head,), vocab, hidden, "vocab", spec.head_bias)
    for index in range(spec.num_layers):
        layer = spec.layer(index)
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, MLP)  # decoder.check_dense
        inner = attention.num_heads * attention.head_dim
        qkv = inner + 2 * attention.num_kv_heads * attention.head_dim
        stem = f"layers.{index}."
        parts = tuple(stem + part for part in ("q", "k", "v"))
        yield PackedMatrix(f"{stem}qkv", parts, qkv, hidden, "column", attention.qkv_bias)
        yield PackedMatrix(f"{stem}o", (f"{stem}o",), hidden, inner, "row", attention.out_bias)
        up = (f"{stem}gate", f"{stem}up") if mlp.gated else (f"{stem}up",)
        size = mlp.intermediate_size
        yield PackedMatrix(f"{stem}gate_up", up, len(up) * size, hidden, "column", mlp.bias)
        yield PackedMatrix(f"{stem}down", (f"{stem}down",), hidden, size, "row", mlp.bias)


def check_cuts(spec: ModelSpec, weights: WeightIndex, num_ranks: int) -> None:
    """Each rank's columns are whole blocks of the file's formats. Raises: Unsupported naming the first."""
    for matrix in packed_matrices(spec) if num_ranks > 1 else ():
        for part in matrix.parts if matrix.shard == "row" else ():
            info = weights[f"{part}.weight"]
            block, width = FORMATS[info.format].block_size, matrix.num_columns // num_ranks
            if width % block:
                raise Unsupported(
                    f"tensor_parallel_size {num_ranks} gives each rank {width} of the {matrix.num_columns} "
                    f"columns of {info.name!r}, which {info.file} stores as {info.format} in blocks of "
                    f"{block} that cannot be cut; use a smaller number, or the model in safetensors"
                )


def weights_bytes(
    spec: ModelSpec,
    weights: WeightIndex,
    num_ranks: int,
    value_bytes: int,
    matrix_bytes: MatrixBytes,
    *,
    shares_embedding: bool,
    norm_bytes: int | None = None,
) -> int:
    """Everything that the first rank packs, whose slices are the largest; `value_bytes` of its dtype.

    Args:
        shares_embedding: a tied head without bias is the embedding table itself.
        norm_bytes: of a value of a norm; None for `value_bytes`.
    """
    rank, total = Rank(0, num_ranks), 0
    for matrix in packed_matrices(spec):
        rows, columns = matrix.num_rows, matrix.num_columns
        if matrix.shard in ("column", "vocab"):
            rows = rank.height(rows)
        if matrix.shard == "row":
            columns = rank.height(columns)
        formats = [weights[f"{part}.weight"].format for part in matrix.parts]
        total += matrix_bytes(matrix.name, formats, rows, columns) + matrix.has_bias * rows * value_bytes
    if spec.tie_embeddings and shares_embedding and not spec.head_bias:
        total -= rank.height(spec.vocab_size) * spec.hidden_size * value_bytes
    return total + norm_values(spec) * (norm_bytes or value_bytes)


def norm_values(spec: ModelSpec) -> int:
    """Weights and biases of all norms."""
    per_norm = spec.hidden_size * (2 if spec.norm.bias else 1)
    norms_of = {"pre": 2, "sandwich": 4, "parallel": 1}
    total = per_norm
    for index in range(spec.num_layers):
        layer = spec.layer(index)
        total += norms_of[layer.order] * per_norm
        if (norm := layer.attention.qk_norm) is not None:
            total += 2 * layer.attention.head_dim * (2 if norm.bias else 1)
    return total
