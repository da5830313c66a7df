"""What the ranks of a tensor-parallel model exchange."""

from __future__ import annotations

from typing import Protocol

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
