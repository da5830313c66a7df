"""The k-quants of GGUF: super-blocks of 256 values whose sub-blocks have small integer scales.

Layouts: ggml-common.h of llama.cpp, block_q2_K to block_q6_K.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from trivet.weights.blocks import bit_pairs, bit_planes, float16_field, nibbles, signed

if TYPE_CHECKING:
    from trivet.weights.blocks import Blocks, Unpacker, Values


def _scaled(scales: Values, quants: Blocks | np.ndarray, minima: Values | None = None) -> Values:
    """Scales [n, s] times quants [n, 256], each scale over 256 / s values; minus minima [n, s]."""
    grouped = quants.reshape(*scales.shape, -1)
    values: Values = scales[:, :, None] * grouped.astype(np.float32)
    if minima is not None:
        values -= minima[:, :, None]
    return values.reshape(len(scales), -1)


def _q2_k(blocks: Blocks) -> Values:
    """16 bytes of scale (low) and minimum (high nibble), 64 bytes of bit pairs, d, dmin."""
    scales = float16_field(blocks, 80) * (blocks[:, :16] & 0x0F)
    minima = float16_field(blocks, 82) * (blocks[:, :16] >> 4)
    return _scaled(scales, bit_pairs(blocks[:, 16:80], 32), minima)


def _q3_k(blocks: Blocks) -> Values:
    """32 bytes of third bits (0 subtracts 4), 64 bytes of bit pairs, 12 of 6-bit scales, d."""
    third = bit_planes(blocks[:, :32], 32)
    quants = signed(bit_pairs(blocks[:, 32:96], 32)) - signed((third ^ 1) << 2)
    packed = blocks[:, 96:108]
    scales = signed(nibbles(packed[:, :8]) | bit_pairs(packed[:, 8:], 4) << 4) - 32
    return _scaled(float16_field(blocks, 108) * scales, quants)


def _six_bit_scales(packed: Blocks) -> tuple[Blocks, Blocks]:
    """12 bytes to 8 scales and 8 minima of 6 bits.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low 6 bits; bytes 8-11 hold the low 4 bits of
    scales 4-7 and of minima 4-7, whose top 2 bits are the top bits of bytes 0-3 and 4-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales, minima


def _halves(packed: Blocks) -> Blocks:
    """Nibbles by groups of 32 bytes: 32 low halves, then 32 high halves."""
    return nibbles(packed.reshape(-1, 32)).reshape(len(packed), -1)


def _q4_k(blocks: Blocks) -> Values:
    """d, dmin, 12 bytes of scales and minima, 128 bytes of nibbles."""
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    return _scaled(
        float16_field(blocks, 0) * scales, _halves(blocks[:, 16:]), float16_field(blocks, 2) * minima
    )


def _q5_k(blocks: Blocks) -> Values:
    """d, dmin, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes of nibbles."""
    scales, minima = _six_bit_scales(blocks[:, 4:16])
    quants = _halves(blocks[:, 48:]) | bit_planes(blocks[:, 16:48], 32) << 4
    return _scaled(float16_field(blocks, 0) * scales, quants, float16_field(blocks, 2) * minima)


def _q6_k(blocks: Blocks) -> Values:
    """128 bytes of nibbles in groups of 64, 64 bytes of top bit pairs, 16 signed scales, d."""
    low = nibbles(blocks[:, :128].reshape(-1, 64)).reshape(len(blocks), -1)
    quants = signed(low | bit_pairs(blocks[:, 128:192], 32) << 4) - 32
    return _scaled(float16_field(blocks, 208) * signed(blocks[:, 192:208]), quants)


UNPACKERS: MappingProxyType[str, Unpacker] = MappingProxyType(
    {"q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k}
)
