"""Refuses torch operations that wait for a device, on a machine that has none.

What a captured graph may not hold, and what would end the overlap of two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAITING: Mapping[Any, str] = {
    aten._local_scalar_dense.default: "a value is brought to the host",
    aten.item.default: "a value is brought to the host",
    aten.is_nonzero.default: "a value is brought to the host",
    aten.nonzero.default: "the size of a result is brought to the host",
    aten.masked_select.default: "the size of a result is brought to the host",
    aten._unique2.default: "the size of a result is brought to the host",
    aten.repeat_interleave.Tensor: "the size of a result is brought to the host",
    aten.bincount.default: "the size of a result is brought to the host",
    aten.equal.default: "a value is brought to the host",
    aten.allclose.default: "a value is brought to the host",
}
# Methods that copy to the host: where all is host they call no operation, and are replaced inside the mode.
COPIES = ("cpu", "tolist", "numpy", "to")
INDEXING = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default)


class NothingWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Raises RuntimeError, as torch does in a capture; what a custom operation does inside is its own.

    A tensor that `torch.empty` made without a device is the host's, and its memory may be written to.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self._depth = 0  # of operations under way
        self._of_host: dict[int, Tensor] = {}  # by address, which is no other's as long as they live
        self._patches = ExitStack()

    def __enter__(self) -> Any:
        for name in COPIES:
            self._patches.enter_context(patch.object(Tensor, name, self._refusing(name)))
        self._patches.enter_context(patch.object(torch, "empty", self._noting(torch.empty)))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        self._patches.close()
        return super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _noting(self, empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def called(*args: Any, **kwargs: Any) -> Tensor:
            made = empty(*args, **kwargs)
            if not self._depth and kwargs.get("device") is None:
                self._of_host[made.data_ptr()] = made
            return made

        return called

    def _refusing(self, name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        def called(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self._depth and self._copies_to_host(name, tensor, args, kwargs):
                raise RuntimeError(
                    f"operation not permitted when stream is capturing: .{name} copies to the host"
                )
            return method(tensor, *args, **kwargs)

        return called

    def _copies_to_host(self, name: str, tensor: Tensor, args: Any, kwargs: Any) -> bool:
        if name == "numpy":
            return tensor.data_ptr() not in self._of_host
        if name != "to":
            return True
        names_host = any(str(each) == "cpu" for each in (*args, kwargs.get("device")))
        return names_host and not kwargs.get("non_blocking", False)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in WAITING:
            raise RuntimeError(f"operation not permitted when stream is capturing: {WAITING[function]}")
        masks = (torch.bool, torch.uint8)
        if function in INDEXING and any(i is not None and i.dtype in masks for i in args[1]):
            raise RuntimeError("operation not permitted when stream is capturing: a mask's size")
        self._depth += 1
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self._depth -= 1
