"""The contract's masks of tokens, from ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trivet.contract import UInt32


def packed_mask(token_ids: Iterable[int], num_tokens: int) -> UInt32:
    """[ceil(V / 32)] the contract's mask in which these tokens, and no others, are allowed."""
    bits = np.zeros(-(-num_tokens // 32) * 32, np.bool_)
    bits[list(token_ids)] = True
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
