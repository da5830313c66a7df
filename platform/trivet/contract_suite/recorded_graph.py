"""A captured graph without a device: operations are recorded with their tensors and run over them again.

What Python would read anew is not read: a replay knows the memory and the numbers of the capture alone, as
on a device. A buffer that is replaced after the capture shows as a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from trivet.contract_suite.nothing_waits import NothingWaits

Call = tuple[Any, Any, Any, list[Tensor]]  # operation, args, kwargs, results


class RecordedGraph(NothingWaits):  # type: ignore[no-untyped-call]  # of torch
    """Records inside `with`; refuses what a capture refuses."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Call] = []

    @classmethod
    def of(cls, run: Callable[[], Tensor]) -> tuple[RecordedGraph, Tensor]:
        """What `run` does, and its result, which a replay fills again. Raises: RuntimeError as torch does."""
        graph = cls()
        with torch.inference_mode(), graph:
            output = run()
        return graph, output

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(function, types, args, kwargs)
        self._calls.append((function, args, kwargs or {}, _tensors(result)))
        return result

    def replay(self) -> None:
        """Every operation over the memory that it had; results go where they were."""
        with torch.inference_mode():
            for function, args, kwargs, results in self._calls:
                found = function(*args, **kwargs)
                _await_collectives(found)
                again = _tensors(found)
                for kept, new in zip(results, again, strict=True):
                    if kept.data_ptr() != new.data_ptr():  # else a view, or written in place
                        kept.copy_(new)


def _await_collectives(result: Any) -> None:
    """What torch.distributed began by itself: behind it in a stream a device would wait, too."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.ScriptObject) and hasattr(leaf, "wait"):
            leaf.wait()


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
