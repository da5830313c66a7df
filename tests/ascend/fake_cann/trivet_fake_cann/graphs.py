"""Records and replays graphs in place of the device, under torch-npu's own capture and update code.

A captured operation is run again at replay on the same memory, so a stale pointer or a step that was left out
of the graph shows. An attention operation whose lengths were not updated since the last replay is an error:
on a device the graph would wait for that update, or for ever.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch_npu.npu.graphs as real
from torch import Tensor
from torch.utils._pytree import tree_leaves
from trivet_fake_cann.device import FakeNpu, host_view


class _Call:
    """One captured operation; `is_current` turns false when it has been replayed and has to be updated."""

    def __init__(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.operation, self.args, self.kwargs, self.result = operation, args, kwargs, result
        self.needs_update = False
        self.is_current = True


class FakeGraphs:
    """Stands behind the functions of torch-npu that a device would carry out."""

    def __init__(self, fake: FakeNpu) -> None:
        self._fake = fake
        self._calls: list[_Call] = []
        self._group: int | None = None
        self._updating: int | None = None
        self._handles = itertools.count(1)
        self._by_handle: dict[int, _Call] = {}

    def install(self) -> None:
        """Replace what torch-npu asks of the device."""
        begin, end, replay = (
            getattr(real.NPUGraph, name) for name in ("capture_begin", "capture_end", "replay")
        )

        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            begin(graph, *args, **kwargs)
            self._calls = graph.fake_calls = []
            self._fake.recorder = self._record

        def capture_end(graph: Any) -> None:
            self._fake.recorder = None
            end(graph)

        def replay_all(graph: Any) -> None:
            replay(graph)
            for call in graph.fake_calls:
                self._replay(call)

        real.NPUGraph.capture_begin = capture_begin
        real.NPUGraph.capture_end = capture_end
        real.NPUGraph.replay = replay_all
        real.graph_task_group_begin = self._group_begin
        real.graph_task_group_end = self._group_end
        real.graph_task_update_begin = self._update_begin
        real.graph_task_update_end = self._update_end
        self._fake.interceptor = self._intercept

    def _record(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = operation._schema.name.partition("::")[2]
        if name in ("_local_scalar_dense", "item"):
            raise RuntimeError("107030: a synchronising operation was captured")
        call = _Call(operation, args, dict(kwargs), result)
        self._calls.append(call)
        if self._group is not None:
            call.needs_update = True
            self._by_handle[self._group] = call

    def _replay(self, call: _Call) -> None:
        if call.needs_update and not call.is_current:
            raise RuntimeError(f"{call.operation} was replayed without an update of its lengths")
        call.is_current = False
        renewed = self._fake.run(call.operation, call.args, call.kwargs)
        for old, new in zip(_tensors(call.result), _tensors(renewed), strict=True):
            if old.numel() and old.data_ptr() != new.data_ptr():
                host_view(old).copy_(host_view(new))

    def _intercept(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the call only renews the arguments of a captured one."""
        if self._updating is None or not operation._schema.name.startswith("npu::"):
            return False
        call = self._by_handle[self._updating]
        call.operation, call.args, call.kwargs, call.is_current = operation, args, dict(kwargs), True
        return True

    def _group_begin(self, stream: Any) -> None:
        self._group = next(self._handles)

    def _group_end(self, stream: Any) -> int:
        assert self._group is not None
        handle, self._group = self._group, None
        return handle

    def _update_begin(self, stream: Any, handle: int) -> None:
        self._updating = handle

    def _update_end(self, stream: Any) -> None:
        self._updating = None


def _tensors(results: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
