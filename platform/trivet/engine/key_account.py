"""What one key has in the engine, and what it owes the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class KeyAccount:
    """`credit` is the deficit of deficit round robin: tokens that are left of its turns, or a debt."""

    key: str
    credit: int = 0
    num_waiting: int = 0
    num_sequences: int = 0  # that wait or run

    @property
    def num_running(self) -> int:
        return self.num_sequences - self.num_waiting
