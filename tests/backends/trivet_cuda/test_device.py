"""A GPU through torch.cuda, which stands here for itself: what it forbids, and what it says when it fails."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trivet.errors import BackendError, DeviceLost, OutOfMemory
from trivet.runners.op_check import OpCase
from trivet_cuda.device import CudaDevice, as_out_of_memory, cure_for, is_fatal
from trivet_cuda.op_table import TWINS
from trivet_cuda.self_test import check_of

ILLEGAL = "CUDA error: an illegal memory access was encountered"


class FakeGraph:
    """A pool lives as long as one of its graphs, as in torch's allocator."""

    pools: dict[object, weakref.WeakSet[FakeGraph]] = {}  # noqa: RUF012  # emptied by the fixture

    def __init__(self) -> None:
        self._pool: object = None

    def begin(self, pool: object) -> None:
        if pool is not None and not self.pools[pool]:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self._pool = pool if pool is not None else len(self.pools) + 1
        self.pools.setdefault(self._pool, weakref.WeakSet()).add(self)

    def pool(self) -> object:
        return self._pool

    def replay(self) -> None:
        """Nothing was recorded."""


@contextmanager
def fake_capture(graph: FakeGraph, pool: object, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"
    graph.begin(pool)
    yield


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    FakeGraph.pools.clear()
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda index: None,
        "get_device_properties": lambda index: properties,
        "CUDAGraph": FakeGraph,
        "graph": fake_capture,
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return CudaDevice(0)


def test_a_device_says_what_it_is(device: CudaDevice) -> None:
    assert (device.arch, device.num_sms) == (90, 132)
    with pytest.raises(BackendError, match="needs number 1"):
        CudaDevice(1)


def test_graphs_share_a_pool_also_when_those_before_have_gone(device: CudaDevice) -> None:
    for _ in range(3):
        device.capture(lambda: torch.zeros(1))
        gc.collect()
    assert len(FakeGraph.pools) == 1
    device.release()
    gc.collect()
    device.capture(lambda: torch.zeros(1))
    assert len(FakeGraph.pools) == 2


def test_a_failed_device_is_closed_without_another_error(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason of an engine's end has to be the first error."""

    def fail() -> None:
        raise RuntimeError(ILLEGAL)

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    device.release()
    assert ILLEGAL in caplog.text


class AcceleratorError(RuntimeError):
    """Torch's own from 2.8 on, by name."""


def test_errors_of_a_step_are_told_apart() -> None:
    assert isinstance(as_out_of_memory(torch.OutOfMemoryError("CUDA out of memory")), OutOfMemory)
    for fatal in (RuntimeError(ILLEGAL), AcceleratorError("anything")):
        assert is_fatal(fatal)
        with pytest.raises(DeviceLost):
            as_out_of_memory(fatal)
    with pytest.raises(BackendError, match="NCCL_DEBUG=INFO") as found:
        as_out_of_memory(RuntimeError("NCCL error: unhandled system error"))
    assert not isinstance(found.value, DeviceLost)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("Failed to find C compiler. Please specify via CC environment variable", "install gcc"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("CUDA error: no kernel image is available for execution", "built for other GPUs"),
        ("all is well", ""),
    ],
)
def test_an_error_has_its_cure(text: str, cure: str) -> None:
    found = cure_for(text)
    assert cure in found if cure else found == ""


def test_a_kernel_that_ends_the_context_is_named_and_no_twin_is_tried() -> None:
    def run(ops: Any) -> list[torch.Tensor]:
        if ops is TWINS:
            pytest.fail("no twin runs on a device that is beyond use")
        raise RuntimeError(ILLEGAL)

    case = OpCase(("swiglu",), "nine tokens", run)
    with pytest.raises(DeviceLost, match=r"swiglu .* left the device beyond use"):
        check_of(object()).outcome(case, torch.float16, 0.1, "test")  # type: ignore[arg-type]
