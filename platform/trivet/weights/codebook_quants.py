"""The IQ types of GGUF: values are looked up in codebooks, eight or four at a time.

Layouts: ggml-common.h of llama.cpp, block_iq1_s to block_iq4_xs. The codebooks themselves (up to 2,048
rows found by search over real models) are data of the `gguf` package, taken from there when first needed:
importing it costs 0.1 s, which models of other types do not pay.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from trivet.weights.blocks import float16_field, high_bits, nibbles, signed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.weights.blocks import Blocks, Unpacker, Values

IQ1_DELTA = np.float32(0.125)


def _quant_class(name: str) -> Any:
    from gguf import quants

    return getattr(quants, name)


@cache
def _codebook(name: str) -> NDArray[np.float32]:
    """[num_rows, 8 or 4], read-only."""
    quant = _quant_class(name)
    quant.init_grid()
    book = np.array(quant.grid, np.float32).reshape(quant.grid_shape)
    book.setflags(write=False)
    return book


@cache
def _nonlinear_levels() -> NDArray[np.float32]:
    """The 16 levels of IQ4_NL and IQ4_XS."""
    levels = np.array(_quant_class("IQ4_NL").kvalues, np.float32)
    levels.setflags(write=False)
    return levels


@cache
def _sign_rows() -> NDArray[np.float32]:
    """[128, 8] of +1 and -1: seven stored signs and one that makes the number of minuses even."""
    signs = high_bits(np.arange(128, dtype=np.uint8)[:, None])
    signs[:, 7] = signs.sum(axis=1) & 1
    rows = 1 - 2 * signs.astype(np.float32)
    rows.setflags(write=False)
    return rows


def _words(blocks: Blocks, start: int, stop: int, kind: str) -> NDArray[Any]:
    return np.ascontiguousarray(blocks[:, start:stop]).view(kind)


def _packed_signs(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Four 7-bit sign indices in the low 28 bits of [n, k] words: [n, k, 4, 8]."""
    shifts = np.array([0, 7, 14, 21], np.uint32)
    signs: NDArray[np.float32] = _sign_rows()[words[:, :, None] >> shifts & 0x7F]
    return signs


def _plain_signs(packed: Blocks) -> NDArray[np.float32]:
    """One sign a bit: [n, k] to [n, k, 8]."""
    return 1 - 2 * high_bits(packed).astype(np.float32).reshape(*packed.shape, 8)


def _alternating_nibbles(packed: Blocks) -> Blocks:
    """[n, k] to [n, 2k]: low half, high half, low half..."""
    return np.stack([packed & 0x0F, packed >> 4], axis=2).reshape(len(packed), -1)


def _applied(scales: Values, values: NDArray[np.float32], signs: NDArray[np.float32] | None) -> Values:
    """Scales [n, s] over `values` (256 a block), with signs in the same order."""
    grouped = values.reshape(*scales.shape, -1)
    if signs is not None:
        grouped = grouped * signs.reshape(grouped.shape)
    result: Values = scales[:, :, None] * grouped
    return result.reshape(len(scales), -1)


def _quarter_scales(d: Values, scales: NDArray[Any]) -> Values:
    """D * (scale + 1/2) / 4."""
    return d * (scales.astype(np.float32) + np.float32(0.5)) * np.float32(0.25)


def _iq2_xxs(blocks: Blocks) -> Values:
    """d; eight times: four codebook indices (bytes), then a word of four sign indices and a scale."""
    words = _words(blocks, 2, 66, "<u4").reshape(len(blocks), 8, 2)
    indices = np.ascontiguousarray(words[:, :, 0]).view(np.uint8)
    scales = _quarter_scales(float16_field(blocks, 0), words[:, :, 1] >> 28)
    return _applied(scales, _codebook("IQ2_XXS")[indices], _packed_signs(words[:, :, 1]))


def _iq2_xs(blocks: Blocks) -> Values:
    """d; 32 words of codebook index (9 bits) and sign index (7); 16 scales of 4 bits."""
    words = _words(blocks, 2, 66, "<u2")
    scales = _quarter_scales(float16_field(blocks, 0), _alternating_nibbles(blocks[:, 66:]))
    return _applied(scales, _codebook("IQ2_XS")[words & 511], _sign_rows()[words >> 9])


def _iq2_s(blocks: Blocks) -> Values:
    """d; 32 low bytes of indices; 32 bytes of signs; 8 bytes of the indices' top bit pairs; 16 scales."""
    shifts = np.array([0, 2, 4, 6], np.uint8)
    top = (blocks[:, 66:74, None] >> shifts & 3).reshape(len(blocks), 32).astype(np.uint16)
    indices = blocks[:, 2:34] | top << 8
    scales = _quarter_scales(float16_field(blocks, 0), _alternating_nibbles(blocks[:, 74:]))
    return _applied(scales, _codebook("IQ2_S")[indices], _plain_signs(blocks[:, 34:66]))


def _iq3_xxs(blocks: Blocks) -> Values:
    """d; 64 codebook indices; 8 words of four sign indices and a scale."""
    words = _words(blocks, 66, 98, "<u4")
    # Half, not a quarter: this codebook's values are of half the size.
    scales = 2 * _quarter_scales(float16_field(blocks, 0), words >> 28)
    return _applied(scales, _codebook("IQ3_XXS")[blocks[:, 2:66]], _packed_signs(words))


def _iq3_s(blocks: Blocks) -> Values:
    """d; 64 low bytes of indices; 8 bytes of their ninth bits; 32 bytes of signs; 8 scales of 4 bits."""
    indices = blocks[:, 2:66] | high_bits(blocks[:, 66:74]).astype(np.uint16) << 8
    scales = float16_field(blocks, 0) * (2 * _alternating_nibbles(blocks[:, 106:]) + 1)
    return _applied(scales, _codebook("IQ3_S")[indices], _plain_signs(blocks[:, 74:106]))


def _shifted_by_delta(values: NDArray[np.float32], is_down: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Codebook rows [..., 8] plus 1/8, or minus 1/8 where `is_down` [...]."""
    shifted: NDArray[np.float32] = values + np.where(is_down, -IQ1_DELTA, IQ1_DELTA)[..., None]
    return shifted


def _iq1_s(blocks: Blocks) -> Values:
    """d; 32 low bytes of indices; 8 words: four times 3 top bits, a scale of 3 bits, the delta's sign."""
    words = _words(blocks, 34, 50, "<u2")
    top = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), 32)
    values = _codebook("IQ1_S")[blocks[:, 2:34] | top << 8].reshape(len(blocks), 8, 4, 8)
    is_down = np.broadcast_to((words >> 15).astype(np.bool_)[:, :, None], values.shape[:3])
    scales = float16_field(blocks, 0) * (2 * (words >> 12 & 7) + 1)
    return _applied(scales, _shifted_by_delta(values, is_down), None)


def _iq1_m(blocks: Blocks) -> Values:
    """32 low bytes of indices; 16 bytes of nibbles (3 top bits, the delta's sign); 4 words of scales.

    A word of scales holds four scales of 3 bits; its top nibble is a quarter of the float16 scale d.
    """
    words = _words(blocks, 48, 56, "<u2")
    quarters = words >> 12
    d = (quarters[:, 0] | quarters[:, 1] << 4 | quarters[:, 2] << 8 | quarters[:, 3] << 12).view("<f2")
    scales = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(len(blocks), 16)
    top = _alternating_nibbles(blocks[:, 32:48])
    values = _codebook("IQ1_M")[blocks[:, :32] | (top & 7).astype(np.uint16) << 8]
    return _applied(
        d.astype(np.float32)[:, None] * (2 * scales + 1), _shifted_by_delta(values, top >= 8), None
    )


def _iq4_nl(blocks: Blocks) -> Values:
    """Scale f16, 16 bytes of nibbles that choose one of 16 levels."""
    return float16_field(blocks, 0) * _nonlinear_levels()[nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Blocks) -> Values:
    """d; a word of the 8 scales' top bit pairs; 4 bytes of their low nibbles; 128 bytes of nibbles."""
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    top = (_words(blocks, 2, 4, "<u2") >> shifts & 3).astype(np.uint8)
    scales = signed(_alternating_nibbles(blocks[:, 4:8]) | top << 4) - 32
    quants = nibbles(blocks[:, 8:].reshape(-1, 16)).reshape(len(blocks), 256)
    return _applied(float16_field(blocks, 0) * scales, _nonlinear_levels()[quants], None)


UNPACKERS: MappingProxyType[str, Unpacker] = MappingProxyType(
    {
        "iq1_s": _iq1_s,
        "iq1_m": _iq1_m,
        "iq2_xxs": _iq2_xxs,
        "iq2_xs": _iq2_xs,
        "iq2_s": _iq2_s,
        "iq3_xxs": _iq3_xxs,
        "iq3_s": _iq3_s,
        "iq4_nl": _iq4_nl,
        "iq4_xs": _iq4_xs,
    }
)
