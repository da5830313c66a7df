"""Opens an NPU through torch-npu, and says what stands in the way where that fails."""

from __future__ import annotations

import re
from typing import Any, Protocol

import torch

from trivet.errors import BackendError, DeviceLost, Unsupported
from trivet_ascend.explanations import cure_for

# Numbers of torch_npu._C._npu_get_soc_version() by family. Other chips have other operations.
SUPPORTED_SOCS = {"A2": range(220, 226), "A3": range(250, 257)}
OTHER_SOCS = {
    "910A": range(100, 105),
    "310P": range(200, 206),
    "310B": range(240, 244),
    "950": range(260, 264),
}
# Of `import torch_npu`: a missing module or library; a library that ctypes cannot load; CUDA in the same
# torch, or an initialisation that failed; a torch of another release, which lacks a name.
IMPORT_FAILURES = (ImportError, OSError, RuntimeError, AttributeError)


class Device(Protocol):
    """Where tensors live."""

    torch_device: torch.device

    def free_bytes(self) -> int:
        """Of the device's memory, now."""

    def synchronise(self) -> None:
        """Wait for everything that was queued."""

    def release(self) -> None:
        """Give cached memory back."""


class NpuDevice:
    """One NPU of this process, by its place among the visible ones."""

    def __init__(self, index: int) -> None:
        """Raises: BackendError with what to do; Unsupported for a chip that the operations do not fit."""
        self._npu = _import_torch_npu()
        self.torch_device = torch.device("npu", index)
        count = self._npu.device_count()
        if index >= count:
            raise BackendError(
                f"torch-npu sees {count} NPUs and this rank needs number {index}; ASCEND_RT_VISIBLE_DEVICES "
                "must list ascending logical ids of devices that this container has"
            )
        try:
            self._npu.set_device(index)
        except RuntimeError as error:
            raise BackendError(f"NPU {index} cannot be opened: {error}{cure_for(str(error))}") from error
        _check_soc(_soc_version())
        # Operators are compiled ahead of time; compiling them at run time takes seconds a shape.
        self._npu.set_compile_mode(jit_compile=False)

    def free_bytes(self) -> int:
        """As `Device`, with what torch-npu's allocator holds and does not use."""
        free, _ = self._npu.mem_get_info(self.torch_device)
        cached = self._npu.memory_reserved(self.torch_device) - self._npu.memory_allocated(self.torch_device)
        return int(free) + int(cached)

    def synchronise(self) -> None:
        """As `Device`."""
        self._npu.synchronize(self.torch_device)

    def release(self) -> None:
        """As `Device`."""
        self._npu.empty_cache()


def _import_torch_npu() -> Any:
    """The module torch.npu. Raises: BackendError."""
    try:
        import torch_npu  # noqa: F401  # registers the device with torch
    except IMPORT_FAILURES as error:
        raise BackendError(
            f"torch-npu cannot be imported: {type(error).__name__}: {error}{cure_for(str(error))}"
        ) from error
    npu: Any = torch.npu  # type: ignore[attr-defined]  # torch-npu puts it there
    if not npu.is_available():
        raise BackendError(
            "torch-npu was imported and sees no NPU; check ASCEND_RT_VISIBLE_DEVICES (ascending logical "
            "ids), /dev/davinciN in the container, and `npu-smi info`"
        )
    return npu


def _soc_version() -> int:
    import torch_npu

    return int(torch_npu._C._npu_get_soc_version())


def _check_soc(version: int) -> None:
    if any(version in numbers for numbers in SUPPORTED_SOCS.values()):
        return
    name = next((name for name, numbers in OTHER_SOCS.items() if version in numbers), f"number {version}")
    raise Unsupported(
        f"this NPU's chip is {name}; Trivet's operations are those of Atlas A2 and A3 (910B, 910C): "
        "use one of these, or backend cpu"
    )


def as_step_failure(error: RuntimeError) -> BackendError:
    """A fault of the device, which ends the process, or anything else with its cure."""
    text = str(error)
    if re.search(r"\b507\d{3}\b|aclrtSynchronize|device task abort", text):
        return DeviceLost(f"the NPU failed in a step: {text}{cure_for(text)}")
    return BackendError(f"an operation of the NPU failed: {text}{cure_for(text)}")
