"""What a rank opens in its own process, which finds these functions by their module's name."""

from __future__ import annotations

from functools import partial

import torch
from trivet_ascend_emulated.backend import TOTAL_BYTES
from trivet_ascend_emulated.device import EmulatedDevice

from trivet.errors import BackendError, DoesNotFit
from trivet.runners.rank_order import OpenedRank, RankOrder
from trivet_ascend.backend import runner_shape
from trivet_ascend.explanations import cure_for
from trivet_ascend.runner import AscendRunner


def open_emulated(order: RankOrder) -> OpenedRank:
    """The emulated device, and gloo."""
    torch.set_num_threads(1)
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    device = EmulatedDevice(TOTAL_BYTES)
    return OpenedRank(
        "gloo", partial(AscendRunner, order.spec, order.plan, shape, device, order.rank), cure_for
    )


def refuse_rank_1(order: RankOrder) -> OpenedRank:
    """One rank that cannot start."""
    if order.rank.index == 1:
        raise BackendError("NPU 1 cannot be opened: 507018")
    return open_emulated(order)


class TooSmall(AscendRunner):
    """Its device has no room for the KV cache."""

    def allocate_kv(self) -> None:
        raise DoesNotFit("the KV cache takes 2 GiB and 1 GiB is free")


def open_too_small_rank_1(order: RankOrder) -> OpenedRank:
    """Rank 1 fails once it has loaded."""
    opened = open_emulated(order)
    if order.rank.index == 0:
        return opened
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    device = EmulatedDevice(TOTAL_BYTES)
    return OpenedRank("gloo", partial(TooSmall, order.spec, order.plan, shape, device, order.rank), cure_for)
