"""Ternary types (TQ1_0, TQ2_0) and 4-bit floats with shared scales (MXFP4, NVFP4).

Layouts: ggml-common.h of llama.cpp. MXFP4: OCP Microscaling Formats 1.0, section 5. E2M1 values stand
doubled in the table, and the scales halved, so that the table holds integers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from trivet.weights.blocks import bit_pairs, float16_field, nibbles, signed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.weights.blocks import Blocks, Unpacker, Values

E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
E2M1_DOUBLED.setflags(write=False)
POWERS_OF_3 = np.array([1, 3, 9, 27, 81], np.uint8)
POWERS_OF_3.setflags(write=False)


def _base_3_digits(packed: Blocks, num_digits: int) -> Blocks:
    """[n, k] to [n, num_digits * k]: all first digits (the most significant), then all second ones...

    A byte holds the fraction digits / 3^5 in 1/256; multiplying by 3^i modulo 256 brings digit i to the
    front.
    """
    shifted = packed[:, None, :] * POWERS_OF_3[:num_digits, None]
    return ((shifted.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(packed), -1)


def _tq1_0(blocks: Blocks) -> Values:
    """32 + 16 bytes of five digits, 4 bytes of four digits, scale f16."""
    digits = np.concatenate(
        [
            _base_3_digits(blocks[:, :32], 5),
            _base_3_digits(blocks[:, 32:48], 5),
            _base_3_digits(blocks[:, 48:52], 4),
        ],
        axis=1,
    )
    return float16_field(blocks, 52) * (signed(digits) - 1)


def _tq2_0(blocks: Blocks) -> Values:
    """64 bytes of bit pairs, scale f16."""
    return float16_field(blocks, 64) * (signed(bit_pairs(blocks[:, :64], 32)) - 1)


def _mxfp4(blocks: Blocks) -> Values:
    """Power-of-two scale (E8M0), 16 bytes of nibbles."""
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    values: Values = scale * E2M1_DOUBLED[nibbles(blocks[:, 1:])]
    return values


def _ue4m3_halved() -> NDArray[np.float32]:
    """All 256 unsigned E4M3 scales (bias 7), halved; 0x7F is not a number there and counts as 0."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 0x0F, code & 0x07
    normal = np.ldexp(8.0 + mantissa, exponent - 11)
    scales = np.where(exponent == 0, np.ldexp(1.0 * mantissa, -10), normal)
    scales[0x7F] = 0
    halved: NDArray[np.float32] = scales.astype(np.float32)
    return halved


UE4M3_HALVED = _ue4m3_halved()
UE4M3_HALVED.setflags(write=False)


def _nvfp4(blocks: Blocks) -> Values:
    """Four E4M3 scales, then for each of the four sub-blocks 8 bytes of nibbles."""
    values = E2M1_DOUBLED[nibbles(blocks[:, 4:].reshape(-1, 8))].reshape(len(blocks), 4, 16)
    scaled: Values = UE4M3_HALVED[blocks[:, :4], None] * values
    return scaled.reshape(len(blocks), 64)


UNPACKERS: MappingProxyType[str, Unpacker] = MappingProxyType(
    {"tq1_0": _tq1_0, "tq2_0": _tq2_0, "mxfp4": _mxfp4, "nvfp4": _nvfp4}
)
