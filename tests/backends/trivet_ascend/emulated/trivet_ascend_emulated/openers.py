"""What a rank opens in its own process, which finds these functions by their module's name."""

from __future__ import annotations

import torch
from trivet_ascend_emulated.device import EmulatedDevice

from trivet.errors import BackendError
from trivet_ascend.npu_device import Device

TOTAL_BYTES = 12 << 30


def open_emulated(index: int) -> tuple[Device, str]:
    """The emulated device, and gloo."""
    torch.set_num_threads(1)
    return EmulatedDevice(TOTAL_BYTES), "gloo"


def refuse_rank_1(index: int) -> tuple[Device, str]:
    """One rank that cannot start."""
    if index == 1:
        raise BackendError("NPU 1 cannot be opened: 507018")
    return open_emulated(index)
