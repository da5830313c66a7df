"""What one rank of a model over several NPUs opens; `trivet.runners.ranks` does the rest."""

from __future__ import annotations

from functools import partial

from trivet.runners.rank_order import OpenedRank, RankOrder
from trivet_ascend.backend import runner_shape
from trivet_ascend.explanations import cure_for
from trivet_ascend.npu_device import NpuDevice
from trivet_ascend.runner import AscendRunner


def open_npu(order: RankOrder) -> OpenedRank:
    """The NPU of the rank's number, and HCCL. Raises: BackendError, Unsupported."""
    device = NpuDevice(order.rank.index)
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    make = partial(AscendRunner, order.spec, order.plan, shape, device, order.rank)
    return OpenedRank("hccl", make, device.torch_device, cure_for)
