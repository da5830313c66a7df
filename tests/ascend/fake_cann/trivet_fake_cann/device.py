"""Computes what an NPU would: every kernel of torch-npu is replaced by torch's own on the same memory.

Under fake_acl.c an NPU's memory is host memory. So tensors, storages, the allocator, streams and views are
the real ones of torch-npu; only arithmetic is not, because there is no chip. torch-npu's own operations go
to the emulator, with its rules asserted.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._pytree import tree_leaves, tree_map
from trivet_ascend_emulated.operators import KERNELS

DEVICE_TYPE = "npu"
NAMESPACES = ("aten", "npu")
# They allocate, or look at a tensor without its values: torch-npu's own code runs.
NATIVE = {
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "set_",
    "record_stream",
    "is_pinned",
    "pin_memory",
    "_pin_memory",
    "npu_format_cast",
    "get_npu_format",
    "_npu_fused_infer_attention_score_infer_output",
}

Recorder = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
Interceptor = Callable[[Any, tuple[Any, ...], dict[str, Any]], bool]


def attention_out(*args: Any, workspace: Tensor, out: list[Tensor], **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The form that torch-npu captures: the result goes into tensors that stay."""
    assert workspace.dtype == torch.uint8
    out[0].copy_(KERNELS["npu_fused_infer_attention_score"](*args, **kwargs)[0].view_as(out[0]))
    return out[0], out[1]


CAPTURE_KERNELS: dict[str, Callable[..., Any]] = {
    "npu_fused_infer_attention_score.out": attention_out,
    "_npu_fused_infer_attention_score_get_max_workspace": lambda *_, **__: torch.empty(
        1024, dtype=torch.uint8
    ),
}


class FakeNpu:
    """The replaced kernels of this process.

    `recorder` sees each call while a graph is captured; `interceptor` takes calls that update a graph.
    """

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.interceptor: Interceptor | None = None
        self._libraries: list[Library] = []

    def install(self) -> None:
        """Replace every kernel that torch-npu has for its device."""
        host = Library(DEVICE_TYPE, "IMPL")
        for name, kernel in {**KERNELS, **CAPTURE_KERNELS}.items():
            host.impl(name, kernel, "CPU")
        self._libraries.append(host)
        libraries = {namespace: Library(namespace, "IMPL") for namespace in NAMESPACES}
        self._libraries.extend(libraries.values())
        known = set(torch._C._dispatch_get_all_op_names())
        for schema in torch._C._jit_get_all_schemas():
            overload = schema.overload_name
            full_name = f"{schema.name}.{overload}" if overload else schema.name
            if full_name not in known:  # TorchScript's own
                continue
            namespace, _, name = full_name.partition("::")
            if namespace in libraries and name.partition(".")[0] not in NATIVE:
                self._replace(libraries[namespace], full_name)

    def _replace(self, library: Library, full_name: str) -> None:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "PrivateUse1"):
            return  # torch puts it together from others
        namespace, _, name = full_name.partition("::")
        name, _, overload = name.partition(".")
        operation = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        if _is_view(operation._schema):
            return

        def kernel(*args: Any, **kwargs: Any) -> Any:
            if self.interceptor is not None and self.interceptor(operation, args, kwargs):
                return kwargs["out"]
            result = self.run(operation, args, kwargs)
            if self.recorder is not None:
                self.recorder(operation, args, kwargs, result)
            return result

        library.impl(full_name.partition("::")[2], kernel, "PrivateUse1", allow_override=True)

    def run(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operation on the host; results are new tensors of the device, or the arguments it writes."""
        written: dict[tuple[Any, ...], Tensor] = {}

        def to_host(value: Any) -> Any:
            if not _is_on_device(value):
                return torch.device("cpu") if _is_device(value) else value
            view = host_view(value)
            written[_place(view)] = value
            return view

        target = (
            torch.device(kwargs["device"]) if kwargs.get("device") is not None else _device_of(args, kwargs)
        )
        host_args, host_kwargs = tree_map(to_host, (args, kwargs))
        host_kwargs.pop("pin_memory", None)
        result = operation(*host_args, **host_kwargs)
        mutates = operation._schema.is_mutable

        def to_device(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if mutates and value.numel() and _place(value) in written:
                return written[_place(value)]
            if target.type != DEVICE_TYPE:
                return value
            made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=target)
            host_view(made).copy_(value)
            return made

        return tree_map(to_device, result)


def host_view(tensor: Tensor) -> Tensor:
    """A CPU tensor on the memory of `tensor`."""
    storage = tensor.untyped_storage()
    num_bytes = storage.nbytes()
    if num_bytes == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_char * num_bytes).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes - num_bytes % tensor.element_size())
    return flat.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _is_view(schema: Any) -> bool:
    """Whether a result shares memory with an argument that the operation does not write."""
    return any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)


def _is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == DEVICE_TYPE


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == DEVICE_TYPE


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    return next(
        (leaf.device for leaf in tree_leaves((args, kwargs)) if _is_on_device(leaf)), torch.device("cpu")
    )


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


@functools.cache
def install_once() -> FakeNpu:
    """The fake NPU of this process. Imports torch-npu, which has to find the fake CANN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its source, when that is compiled for the first time
        import torch_npu  # noqa: F401  # registers the device

    from trivet_fake_cann.graphs import FakeGraphs

    fake = FakeNpu()
    fake.install()
    FakeGraphs(fake).install()
    return fake
