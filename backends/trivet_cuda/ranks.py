"""What one rank of a model over several GPUs opens; `trivet.runners.ranks` does the rest."""

from __future__ import annotations

from functools import partial

from trivet.config import inherited_environment
from trivet.runners.rank_order import OpenedRank, RankOrder
from trivet_cuda.backend import runner_shape
from trivet_cuda.device import open_by_uid
from trivet_cuda.failures import cure_for
from trivet_cuda.op_table import attention_table
from trivet_cuda.runner import CudaRunner


def open_gpu(order: RankOrder) -> OpenedRank:
    """The GPU that was chosen for the rank, and NCCL. Raises: BackendError."""
    device = open_by_uid(order.devices[order.rank.index].uid, inherited_environment())
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    table = attention_table(shape.options.attention, device.torch_device)
    make = partial(CudaRunner, order.spec, order.plan, shape, device, table, order.rank)
    return OpenedRank("nccl", make, device.torch_device, cure_for)
