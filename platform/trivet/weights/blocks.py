"""Pieces that the block formats share: scales, nibbles, bit planes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Blocks = NDArray[np.uint8]  # [n, bytes]
    Values = NDArray[np.float32]  # [n, values]
    Unpacker = Callable[[Blocks], Values]


def float16_field(blocks: Blocks, start: int) -> Values:
    """The float16 at byte `start` of every block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def signed(values: NDArray[Any]) -> NDArray[np.int8]:
    """The same bits as two's complement."""
    return values.view(np.int8)


def nibbles(packed: Blocks) -> Blocks:
    """[n, k] to [n, 2k]: all low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def bit_pairs(packed: Blocks, group: int) -> Blocks:
    """[n, k] to [n, 4k]: of each `group` bytes first all lowest pairs of bits, then the next..."""
    return _planes(packed, group, 2, 0x03)


def bit_planes(packed: Blocks, group: int) -> Blocks:
    """[n, k] to [n, 8k]: of each `group` bytes first all lowest bits, then the next..."""
    return _planes(packed, group, 1, 0x01)


def high_bits(packed: Blocks) -> Blocks:
    """[n, k] to [n, 8k]: bits of each byte from the lowest up."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _planes(packed: Blocks, group: int, width: int, mask: int) -> Blocks:
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    planes = packed.reshape(len(packed), -1, 1, group) >> shifts & np.uint8(mask)
    return planes.reshape(len(packed), -1)
