"""From stored numbers of any format to float32, by vectorised NumPy.

An unpacker takes whole blocks, [n, block_bytes] uint8, and returns their values, [n, block_size]
float32. Results equal the `gguf` package's bit for bit: a scale of 11 bits times small integers is exact
in float32, and where a minimum is added both round once. This module has the plain and the legacy types;
`k_quants`, `ternary_and_fp4` and `codebook_quants` have the others.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from trivet.errors import WeightsError
from trivet.weights import codebook_quants, k_quants, ternary_and_fp4
from trivet.weights.blocks import float16_field, high_bits, nibbles, signed
from trivet.weights.formats import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.weights.blocks import Blocks, Unpacker, Values

# Values made at a time: temporaries of 1 MB stay in the L2 cache.
CHUNK_VALUES = 1 << 18


def _f32(blocks: Blocks) -> Values:
    return blocks.view("<f4")


def _f16(blocks: Blocks) -> Values:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Blocks) -> Values:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _f64(blocks: Blocks) -> Values:
    return blocks.view("<f8").astype(np.float32)


def _q4_0(blocks: Blocks) -> Values:
    """Scale f16, 16 bytes of nibbles."""
    return float16_field(blocks, 0) * (signed(nibbles(blocks[:, 2:])) - 8)


def _q4_1(blocks: Blocks) -> Values:
    """Scale and minimum f16, 16 bytes of nibbles."""
    return float16_field(blocks, 0) * nibbles(blocks[:, 4:]) + float16_field(blocks, 2)


def _q5_0(blocks: Blocks) -> Values:
    """Scale f16, 32 fifth bits, 16 bytes of nibbles."""
    values = nibbles(blocks[:, 6:]) | high_bits(blocks[:, 2:6]) << 4
    return float16_field(blocks, 0) * (signed(values) - 16)


def _q5_1(blocks: Blocks) -> Values:
    """Scale and minimum f16, 32 fifth bits, 16 bytes of nibbles."""
    values = nibbles(blocks[:, 8:]) | high_bits(blocks[:, 4:8]) << 4
    return float16_field(blocks, 0) * values + float16_field(blocks, 2)


def _q8_0(blocks: Blocks) -> Values:
    """Scale f16, 32 signed bytes."""
    return float16_field(blocks, 0) * signed(blocks[:, 2:])


UNPACKERS: MappingProxyType[str, Unpacker] = MappingProxyType(
    {
        "f32": _f32,
        "f16": _f16,
        "bf16": _bf16,
        "f64": _f64,
        "q4_0": _q4_0,
        "q4_1": _q4_1,
        "q5_0": _q5_0,
        "q5_1": _q5_1,
        "q8_0": _q8_0,
        **k_quants.UNPACKERS,
        **ternary_and_fp4.UNPACKERS,
        **codebook_quants.UNPACKERS,
    }
)


def dequantize(raw: NDArray[np.uint8], format_name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the values in a fresh array of `shape`; `raw` holds their bytes in any shape.

    Raises: WeightsError for a format without an unpacker or a size that does not fit the shape.
    """
    if format_name not in UNPACKERS:
        raise WeightsError(
            f"numbers of type {format_name!r} cannot be turned into float32; "
            f"types that can: {', '.join(UNPACKERS)}: convert the model to one of these"
        )
    kind = FORMATS[format_name]
    num_values = math.prod(shape)
    if raw.size * kind.block_size != num_values * kind.block_bytes:
        raise WeightsError(
            f"{raw.size} bytes of {format_name} do not fit the shape {list(shape)}; the file is damaged: "
            "fetch it again"
        )
    unpack = UNPACKERS[format_name]
    blocks = np.ascontiguousarray(raw).reshape(-1, kind.block_bytes)
    values = np.empty((len(blocks), kind.block_size), np.float32)
    step = CHUNK_VALUES // kind.block_size
    # Damaged scales may be infinite or no number; that shows in the values, not as a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            values[start : start + step] = unpack(blocks[start : start + step])
    return values.reshape(shape)
