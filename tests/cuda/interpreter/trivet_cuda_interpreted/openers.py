"""What a rank opens in its own process, which finds these functions by their module's name."""

from __future__ import annotations

from functools import partial

import torch
from trivet_cuda_interpreted.device import InterpretedDevice
from trivet_cuda_interpreted.repair import install

from trivet.runners.rank_order import OpenedRank, RankOrder
from trivet_cuda.backend import runner_shape
from trivet_cuda.op_table import triton_table
from trivet_cuda.runner import CudaRunner


def open_interpreted(order: RankOrder) -> OpenedRank:
    """The interpreted device, and gloo."""
    torch.set_num_threads(1)
    install()
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    make = partial(CudaRunner, order.spec, order.plan, shape, InterpretedDevice(), triton_table(), order.rank)
    return OpenedRank("gloo", make)
