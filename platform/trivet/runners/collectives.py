"""What the ranks of a tensor-parallel model exchange."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Collectives(Protocol):
    """Between the ranks; every rank calls in the same order."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, which may be overwritten."""

    def concatenate(self, x: Tensor) -> Tensor:
        """[R, n] of each rank -> [R, count * n], on every rank."""


class Alone:
    """One rank."""

    def sum(self, x: Tensor) -> Tensor:
        return x

    def concatenate(self, x: Tensor) -> Tensor:
        return x


class Distributed:
    """Over torch's process group (HCCL, NCCL, gloo), which `ranks` has made."""

    def sum(self, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    def concatenate(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)
