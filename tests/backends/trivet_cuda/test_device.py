"""A GPU through torch.cuda, which stands here for itself: what it forbids, and what it says when it fails."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trivet.errors import BackendError, DeviceLost, DoesNotFit, OutOfMemory
from trivet.runners.op_check import OpCase
from trivet_cuda.device import CudaDevice, CudaMark, open_by_uid
from trivet_cuda.failures import as_step_failure, cure_for, is_fatal
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
def fake_capture(graph: FakeGraph, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"
    graph.begin(pool)
    before = torch.cuda.current_stream()
    torch.cuda.set_stream(stream)  # type: ignore[arg-type]
    try:
        yield
    except RuntimeError:
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904  # as torch
    torch.cuda.set_stream(before)


def without_a_gpu(make: Callable[..., torch.Tensor], *sizes: int, **options: Any) -> torch.Tensor:
    """What would be made there."""
    return make(*sizes, **{**options, "device": "cpu"})


def properties(uuid: str) -> SimpleNamespace:
    return SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, uuid=uuid
    )


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    FakeGraph.pools.clear()
    stream: list[object] = ["of steps"]
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda index: None,
        "get_device_properties": lambda index: properties("a"),
        "CUDAGraph": FakeGraph,
        "graph": fake_capture,
        "current_stream": lambda device=None: stream[0],
        "set_stream": lambda chosen: stream.__setitem__(0, chosen),
        "empty_cache": lambda: None,
        "Stream": lambda device: f"of captures on {device}",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "zeros", partial(without_a_gpu, torch.zeros))
    return CudaDevice(0)


def test_a_device_says_what_it_is(device: CudaDevice) -> None:
    assert (device.arch, device.num_sms) == (90, 132)
    assert device.label == "NVIDIA H100, sm_90, 132 SMs, 81920 MiB, a"
    with pytest.raises(BackendError, match="needs number 1"):
        CudaDevice(1)


def test_captures_of_two_devices_have_streams_of_their_own(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own one stays that of whichever device was first in this process."""
    two_gpus(monkeypatch)
    other = CudaDevice(1)
    streams = []
    for each in (device, other):
        each.capture(lambda: streams.append(torch.cuda.current_stream()) or torch.zeros(1))  # type: ignore[func-returns-value]
    assert streams == ["of captures on cuda:0", "of captures on cuda:1"]


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), DoesNotFit, "no room for CUDA itself"),
        (RuntimeError("CUDA error: out of memory"), DoesNotFit, "end what else runs there"),
        (
            RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            BackendError,
            "another process has it for itself",
        ),
        (RuntimeError("CUDA error: no kernel image is available"), BackendError, "built for other GPUs"),
    ],
)
def test_a_device_whose_context_cannot_be_made_is_told_in_words(
    device: CudaDevice,
    monkeypatch: pytest.MonkeyPatch,
    failure: RuntimeError,
    kind: type[Exception],
    words: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(torch, "zeros", fail)
    with pytest.raises(kind, match=words):
        CudaDevice(0)


@pytest.mark.parametrize(
    ("visible", "uid", "index"),
    [
        (None, "GPU-a", 1),  # in CUDA's own order
        (None, "GPU-b", 0),
        ("0,1", "GPU-a", 1),
        ("GPU-a,GPU-b", "GPU-b", 1),  # as an engine is launched, whatever torch says
        ("MIG-c", "MIG-c", 0),
    ],
)
def test_the_gpu_that_was_chosen_is_opened(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, visible: str | None, uid: str, index: int
) -> None:
    two_gpus(monkeypatch)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert open_by_uid(uid, environment).torch_device == torch.device("cuda", index)


def test_a_gpu_that_this_process_does_not_see_is_refused(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_gpus(monkeypatch)
    with pytest.raises(BackendError, match="does not see GPU-c, which was chosen; it sees b, a"):
        open_by_uid("GPU-c", {})


def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second by bus is the faster one, which CUDA counts first."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: properties("ba"[index]),
    )


def test_graphs_share_a_pool_also_when_those_before_have_gone(device: CudaDevice) -> None:
    for _ in range(3):
        device.capture(lambda: torch.zeros(1))
        gc.collect()
    assert len(FakeGraph.pools) == 1
    device.release()
    gc.collect()
    device.capture(lambda: torch.zeros(1))
    assert len(FakeGraph.pools) == 2


def test_a_capture_that_fails_tells_the_operation_and_leaves_its_stream(device: CudaDevice) -> None:
    def fail() -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        device.capture(fail)
    assert torch.cuda.current_stream() == "of steps"


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
    """Torch's own from 2.8 on, for whatever CUDA says."""


FATAL = [
    RuntimeError(ILLEGAL),
    AcceleratorError("CUDA error: unspecified launch failure"),
    AcceleratorError("CUDA error: device-side assert triggered"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    RuntimeError("Triton Error [CUDA]: misaligned address"),
    AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
    AcceleratorError("CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"),
]
LACKS_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    AcceleratorError("CUDA error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]
OTHERS = [
    AcceleratorError("CUDA error: invalid argument"),
    RuntimeError("Triton Error [CUDA]: invalid argument"),
    RuntimeError("NCCL error: unhandled system error"),
]


@pytest.mark.parametrize("error", FATAL, ids=str)
def test_an_error_after_which_nothing_works_ends_the_process(error: RuntimeError) -> None:
    assert is_fatal(error)
    with pytest.raises(DeviceLost):
        as_step_failure(error)


@pytest.mark.parametrize("error", LACKS_MEMORY, ids=str)
def test_lack_of_memory_ends_a_step_and_not_the_process(error: RuntimeError) -> None:
    assert not is_fatal(error)
    assert isinstance(as_step_failure(error), OutOfMemory)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_any_other_error_is_told_and_the_device_is_not_lost(error: RuntimeError) -> None:
    assert not is_fatal(error)
    with pytest.raises(BackendError) as found:
        as_step_failure(error)
    assert not isinstance(found.value, DeviceLost)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("Failed to find C compiler. Please specify via CC environment variable", "install gcc"),
        ("Command '['/usr/bin/gcc', '-O3']' returned non-zero exit status 1.", "python3-dev"),
        ("libcuda.so cannot found!\nPlease make sure GPU is set up", "run ldconfig"),
        ("[Errno 13] Permission denied: '/root/.triton'", "TRITON_CACHE_DIR"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("CUDA error: no kernel image is available for execution", "built for other GPUs"),
        ("NCCL error: unhandled system error", "NCCL_DEBUG=INFO"),
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


def test_what_the_pool_of_graphs_holds_is_not_free(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 GB: 2 in tensors, 3 in the pool of graphs, 1 cached by the allocator until it is asked for it."""
    cached = [1]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: cached.__setitem__(0, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 - 2 - 3 - cached[0], 10))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 + 3 + cached[0])
    assert device.free_bytes() == 5


def test_who_waits_for_a_step_keeps_no_core_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, bool]] = []

    def event(**settings: bool) -> SimpleNamespace:
        asked.append(settings)
        return SimpleNamespace(record=lambda: None)

    monkeypatch.setattr(torch.cuda, "Event", event)
    CudaMark()
    assert asked == [{"enable_timing": True, "blocking": True}]
