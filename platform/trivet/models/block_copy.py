"""Copies whole blocks of a paged KV cache that torch holds: copy-on-write, swap out and in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from trivet.contract import Int32


def copy_blocks(sources: Sequence[Tensor], targets: Sequence[Tensor], pairs: Int32) -> None:
    """`targets[i][pairs[:, 1]] = sources[i][pairs[:, 0]]`; of one tensor all blocks are read first.

    Args:
        sources: one tensor or more a layer, [num_blocks, ...]; `targets` may be the same tensors, or others
            of the same sizes on another device.
        pairs: [n, 2] block ids: source, target.
    """
    source, target = torch.from_numpy(pairs.astype(np.int64)).unbind(1)
    for one, other in zip(sources, targets, strict=True):
        found = one.index_select(0, source.to(one.device))
        other.index_copy_(0, target.to(other.device), found.to(other.device))
