"""Brings the host's small arrays of a step to the device in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 4  # elements: Triton compiles another kernel for a pointer that is not at 16 bytes
Array = NDArray[Any]


def layout(arrays: Mapping[str, Array]) -> tuple[dict[str, int], int]:
    """Where each array begins in one buffer of 32-bit elements, and how many it takes in all."""
    starts, total = {}, 0
    for name, array in arrays.items():
        starts[name] = total
        total += -(-array.size // ALIGNMENT) * ALIGNMENT
    return starts, total


def packed(arrays: Mapping[str, Array], *, pinned: bool) -> tuple[Tensor, dict[str, int]]:
    """All arrays, of 32-bit elements each, end to end in a host tensor of int32; and where each begins."""
    starts, total = layout(arrays)
    host = torch.empty(total, dtype=torch.int32, pin_memory=pinned)
    flat = host.numpy()
    for name, array in arrays.items():
        flat[starts[name] : starts[name] + array.size] = np.ascontiguousarray(array).view(np.int32).ravel()
    return host, starts


def views(buffer: Tensor, arrays: Mapping[str, Array], starts: Mapping[str, int]) -> dict[str, Tensor]:
    """Each array in the device's buffer, in its own shape and type."""
    found = {}
    for name, array in arrays.items():
        part = buffer[starts[name] : starts[name] + array.size]
        part = part.view(torch.float32) if array.dtype == np.float32 else part
        found[name] = part.view(array.shape)
    return found


def upload(arrays: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """The arrays on the device. Pinned memory stays torch's until the copy has happened."""
    host, starts = packed(arrays, pinned=device.type == "cuda")
    return views(host.to(device, non_blocking=True), arrays, starts)


def upload_into(buffer: Tensor, arrays: Mapping[str, Array]) -> None:
    """The arrays into the device's buffer that `layout` has been asked for."""
    host, _ = packed(arrays, pinned=buffer.device.type == "cuda")
    assert len(host) == len(buffer)
    buffer.copy_(host, non_blocking=True)
