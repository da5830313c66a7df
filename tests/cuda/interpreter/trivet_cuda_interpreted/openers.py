"""What a rank opens in its own process, which finds these functions by their module's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from trivet_cuda_interpreted.device import InterpretedDevice
from trivet_cuda_interpreted.repair import install

from trivet.runners.rank_order import OpenedRank, RankOrder
from trivet_cuda.backend import runner_shape
from trivet_cuda.device import Captured
from trivet_cuda.op_table import triton_table
from trivet_cuda.runner import CudaRunner


def open_interpreted(order: RankOrder) -> OpenedRank:
    """The interpreted device, and gloo."""
    return _opened(order, InterpretedDevice())


def open_one_that_captures_little(order: RankOrder) -> OpenedRank:
    """The last rank captures the largest bucket and no other."""
    return _opened(order, CapturesLittle() if order.rank.index else InterpretedDevice())


class CapturesLittle(InterpretedDevice):
    """A device whose second capture fails; at its end, for the collectives of this stand-in really happen."""

    def capture(self, run: Callable[[], Tensor]) -> Captured:
        captured = super().capture(run)
        if self.num_captured > 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return captured


def _opened(order: RankOrder, device: InterpretedDevice) -> OpenedRank:
    torch.set_num_threads(1)
    install()
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    make = partial(CudaRunner, order.spec, order.plan, shape, device, triton_table(), order.rank)
    return OpenedRank("gloo", make, device.torch_device)
