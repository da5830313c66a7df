"""What one rank of a model over several GPUs opens; `trivet.runners.ranks` does the rest."""

from __future__ import annotations

from functools import partial

from trivet.runners.rank_order import OpenedRank, RankOrder
from trivet_cuda.backend import runner_shape
from trivet_cuda.device import CudaDevice, cure_for
from trivet_cuda.op_table import triton_table
from trivet_cuda.runner import CudaRunner


def open_gpu(order: RankOrder) -> OpenedRank:
    """The GPU of the rank's number, and NCCL. Raises: BackendError."""
    device, table = CudaDevice(order.rank.index), triton_table()
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    make = partial(CudaRunner, order.spec, order.plan, shape, device, table, order.rank)
    return OpenedRank("nccl", make, cure_for)
