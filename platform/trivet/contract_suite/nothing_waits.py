"""Refuses torch operations that wait for a device, on a machine that has none.

What a captured graph may not hold, and what would end the overlap of two steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING: Mapping[Any, str] = {
    aten._local_scalar_dense.default: "a value is brought to the host",
    aten.item.default: "a value is brought to the host",
    aten.is_nonzero.default: "a value is brought to the host",
    aten.nonzero.default: "the size of a result is brought to the host",
    aten.masked_select.default: "the size of a result is brought to the host",
    aten._unique2.default: "the size of a result is brought to the host",
}
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)


class NothingWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Raises RuntimeError, as torch does in a capture. A copy to the host is not seen: here all is host."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {WAITING[function]}")
        masks = (torch.bool, torch.uint8)
        if function in INDEXING and any(i is not None and i.dtype in masks for i in args[1]):
            raise RuntimeError("operation not permitted when stream is capturing: a mask's size")
        return function(*args, **(kwargs or {}))
