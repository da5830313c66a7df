"""How a matrix is kept on the device, and how many bytes that takes; the plan and the layout ask here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

GROUP_SIZE = 32  # values that share a scale in GGUF's q4_0, q4_1 and q8_0
SCALE_BYTES = 2  # float16, as in the file
WORD_VALUES = 8  # of 4 bits in an int32


class WeightKind(StrEnum):
    """Of one matrix."""

    PLAIN = "plain"  # in the model's dtype
    W4A16 = "w4a16"  # the 4 bits, scales and offsets of GGUF's q4_0 and q4_1
    W8A16 = "w8a16"  # the 8 bits and scales of GGUF's q8_0


FORMATS = {WeightKind.W4A16: frozenset({"q4_0", "q4_1"}), WeightKind.W8A16: frozenset({"q8_0"})}


def kind_of(weights: str, dtype: str, name: str, formats: Sequence[str], num_columns: int) -> WeightKind:
    """How the matrix `name` ("embed", "head", "layers.3.qkv") is kept under the option `weights`.

    Args:
        formats: of its parts in the file.
    """
    if weights == "plain" or dtype == "f32" or name in ("embed", "head") or num_columns % GROUP_SIZE:
        return WeightKind.PLAIN
    for kind, wanted in FORMATS.items():
        if wanted.issuperset(formats):
            return kind
    return WeightKind.PLAIN


def tensor_bytes(kind: WeightKind, num_rows: int, num_columns: int, value_bytes: int) -> tuple[int, ...]:
    """Of each tensor of a matrix [num_rows, num_columns] without bias; `value_bytes` of the model's dtype."""
    values, scales = num_rows * num_columns, num_rows * (num_columns // GROUP_SIZE) * SCALE_BYTES
    if kind == WeightKind.W4A16:
        return values // 2, scales, scales  # scales and offsets
    if kind == WeightKind.W8A16:
        return values, scales
    return (values * value_bytes,)
