"""What a rank is started with, and how the ranks of a model meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from trivet.contract import Batch, DeviceInfo, MemoryPlan, Runner, RunnerConfig
from trivet.errors import BackendError
from trivet.models.spec import ModelSpec
from trivet.runners.collectives import Collectives, Distributed
from trivet.runners.slices import Rank
from trivet.runners.wire import flatten

MEETING_TIMEOUT = timedelta(minutes=5)
# First byte of a rank's answer; behind it stand its notices so far (`wire.flatten`), or words.
DONE, FAILED = b"+", b"-"


class ShardedRunner(Runner, Protocol):
    """A runner of one rank."""

    def resolved(self, batch: Batch) -> Batch:
        """With every token id known; asked of rank 0."""

    def is_ready(self, step: int) -> bool:
        """Whether `collect(step)` would not wait; asked of rank 0."""

    def notices(self) -> tuple[str, ...]:
        """As `optional_contract.GivesNotices`."""

    def peaks(self) -> dict[str, int]:
        """As `MeasuresPeaks`; asked of rank 0."""

    def take_part_in_sampling(self, step: int) -> None:
        """A rank's share of `sample`: the logits of its part of the vocabulary. Ends the step there."""


@dataclass(frozen=True, slots=True)
class RankOrder:
    """The arguments of `Backend.create_runner`, and which rank this is."""

    opens: str  # "package.module:function", an `OpensRank`
    rank: Rank
    meeting: str  # file where the ranks find each other
    spec: ModelSpec
    config: RunnerConfig
    plan: MemoryPlan
    devices: tuple[DeviceInfo, ...]

    def as_message(self) -> bytes:
        """What `rank_process` reads first."""
        return flatten(tuple(getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class OpenedRank:
    """A rank whose device is open."""

    process_group: str  # torch's name of the collectives: "hccl", "nccl", "gloo"
    make_runner: Callable[[Collectives], ShardedRunner]  # once the ranks have met
    torch_device: torch.device
    cure_for: Callable[[str], str] = lambda text: ""  # what to do about an error of the collectives


class OpensRank(Protocol):
    """Opens the device of a rank in its process. Raises: BackendError."""

    def __call__(self, order: RankOrder) -> OpenedRank: ...


def meet(order: RankOrder, opened: OpenedRank) -> None:
    """Wait for the other ranks, whose devices are open; their first collective has been when this returns.

    NCCL and HCCL connect in it, so that whoever watches the meeting sees a rank that is missing there, too.

    Raises: BackendError.
    """
    rank = order.rank
    try:
        dist.init_process_group(
            opened.process_group,
            init_method=f"file://{order.meeting}",
            rank=rank.index,
            world_size=rank.count,
            timeout=MEETING_TIMEOUT,
        )
        Distributed().sum(torch.ones(1, device=opened.torch_device)).item()
    except RuntimeError as error:
        cure = opened.cure_for(str(error))
        raise BackendError(
            f"rank {rank.index} of {rank.count} did not meet the others: {error}{cure}"
        ) from error
