"""What a backend whose operations can be compared with plain torch tells, for `trivet selftest`; no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class OpOutcome:
    """One case. `error` is over the largest value of a row of the right result; inf where it is no number."""

    ops: tuple[str, ...]
    case: str
    dtype: str
    error: float
    allowed: float
    failure: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)  # by names with their units

    @property
    def passed(self) -> bool:
        return not self.failure and self.error <= self.allowed


@runtime_checkable
class TestsItself(Protocol):
    """A backend with a self-test; optional, runs in the backend's own environment."""

    def self_test(self, device: int) -> Iterator[OpOutcome]:
        """Every operation against its twin on the visible device of this number.

        Raises: BackendError with what to do where the device cannot be opened; Unsupported.
        """

    def self_test_versions(self) -> Mapping[str, str]:
        """Of vendor's packages, driver and firmware; Trivet, torch and the machine are known."""
