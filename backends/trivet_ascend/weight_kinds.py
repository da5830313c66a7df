"""How a matrix is kept on the device, and how many bytes that takes; the plan and the packer ask here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from trivet.weights.formats import FORMATS

# The quantised products take at most 65,535 rows or columns: a wider head is done in pieces of a multiple
# of 64 columns.
MAX_COLUMNS = 65_535
PIECE_COLUMNS = 65_472
GROUP_SIZE = FORMATS["q4_0"].block_size  # 32 values share a scale, as in q4_1
FOUR_BIT_FORMATS = ("q4_0", "q4_1")
WORD_VALUES = 8  # of 4 bits in an int32


class WeightKind(StrEnum):
    """`weights` option of a deployment, matrix by matrix."""

    PLAIN = "plain"  # in the model's dtype
    W8A16 = "w8a16"  # int8 with a scale a row of the matrix
    W8A8 = "w8a8"  # the same, and activations in int8 with a scale a token
    W4A16 = "w4a16"  # 4 bits in groups, as GGUF's q4_0 and q4_1 store them


def kind_of(weights: str, name: str, formats: Sequence[str], num_rows: int, num_columns: int) -> WeightKind:
    """How the matrix `name` ("embed", "head", "layers.3.qkv") is kept under the option `weights`.

    A head never has its activations quantised: its logits would come from 8 bits. What does not suit the
    4-bit operation stays in the model's dtype.

    Args:
        formats: of its parts in the file.
    """
    if weights == WeightKind.PLAIN or name == "embed" or num_columns > MAX_COLUMNS:
        return WeightKind.PLAIN
    if weights != WeightKind.W4A16:
        return WeightKind.W8A16 if name == "head" else WeightKind(weights)
    is_four_bit = name != "head" and all(kind in FOUR_BIT_FORMATS for kind in formats)
    fits = num_columns > GROUP_SIZE and num_columns % GROUP_SIZE == 0 and num_rows % WORD_VALUES == 0
    return WeightKind.W4A16 if is_four_bit and fits else WeightKind.PLAIN


def shares_embedding(weights: str) -> bool:
    """Whether a tied head is the embedding table itself, because both are plain."""
    return kind_of(weights, "head", (), 1, 1) == WeightKind.PLAIN


def matrix_bytes(kind: WeightKind, num_rows: int, num_columns: int, value_bytes: int) -> int:
    """Of a matrix [num_rows, num_columns] without bias; `value_bytes` of the model's dtype."""
    if kind == WeightKind.PLAIN:
        return num_rows * num_columns * value_bytes
    if kind == WeightKind.W4A16:
        return num_rows * num_columns // 2 + 2 * num_rows * (num_columns // GROUP_SIZE) * value_bytes
    return num_rows * num_columns + num_rows * (4 if kind == WeightKind.W8A8 else value_bytes)
