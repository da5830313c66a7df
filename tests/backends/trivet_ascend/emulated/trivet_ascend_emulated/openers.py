"""What a rank opens in its own process, which finds these functions by their module's name."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from trivet_ascend_emulated.backend import TOTAL_BYTES
from trivet_ascend_emulated.device import EmulatedDevice, FailingRunner

from trivet.contract import Batch
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
    make = partial(AscendRunner, order.spec, order.plan, shape, device, order.rank)
    return OpenedRank("gloo", make, device.torch_device, cure_for)


def _with_rank_1(order: RankOrder, runner: type[AscendRunner]) -> OpenedRank:
    """Rank 1 has another runner."""
    opened = open_emulated(order)
    if order.rank.index != 1:
        return opened
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    make = partial(runner, order.spec, order.plan, shape, EmulatedDevice(TOTAL_BYTES), order.rank)
    return replace(opened, make_runner=make)


class Unforeseen(AscendRunner):
    """A step of it ends by an error that is none of torch or the operating system, as a compiler's."""

    def forward(self, batch: Batch) -> None:
        raise TypeError("a kernel takes no argument 'num_rows'")


def open_unforeseen(order: RankOrder) -> OpenedRank:
    """Rank 1 fails in its first step by a mistake."""
    return _with_rank_1(order, Unforeseen)


class OutOfMemoryInItsFirstStep(FailingRunner):
    """Behind the warm-up."""

    failing_step = 1


def open_without_memory(order: RankOrder) -> OpenedRank:
    """Rank 1 runs out of memory in step 1."""
    return _with_rank_1(order, OutOfMemoryInItsFirstStep)


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
    return _with_rank_1(order, TooSmall)


class LeavesBeforeTheGroup:
    """An `OpenedRank` whose process ends when it shall form the group."""

    @property
    def process_group(self) -> str:
        os._exit(7)


class LeavesBeforeTheFirstCollective:
    """An `OpenedRank` whose process ends when the group is there."""

    process_group = "gloo"

    @property
    def torch_device(self) -> torch.device:
        os._exit(7)


def leave_before_the_group(order: RankOrder) -> OpenedRank:
    """The last rank, with its device open."""
    return cast("OpenedRank", LeavesBeforeTheGroup()) if _is_last(order) else open_emulated(order)


def leave_before_the_first_collective(order: RankOrder) -> OpenedRank:
    """The last rank, with its device open; the others have words about it."""
    return cast("OpenedRank", LeavesBeforeTheFirstCollective()) if _is_last(order) else open_emulated(order)


def _is_last(order: RankOrder) -> bool:
    return order.rank.index == order.rank.count - 1


class Noticing(AscendRunner):
    """Has something to tell that rank 0 has not."""

    def notices(self) -> tuple[str, ...]:
        return (*super().notices(), "swiglu runs as its twin") if self._rank.index else super().notices()


def open_noticing(order: RankOrder) -> OpenedRank:
    """The other ranks have a notice; with two ranks or more."""
    opened = open_emulated(order)
    shape = runner_shape(order.spec, order.config, order.plan, order.devices)
    device = EmulatedDevice(TOTAL_BYTES)
    make = partial(Noticing, order.spec, order.plan, shape, device, order.rank)
    return replace(opened, make_runner=make)
