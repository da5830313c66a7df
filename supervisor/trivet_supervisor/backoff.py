"""When an engine that ended is started again, and when no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubling delays. A boot is a start that has not reached `ready`."""

    first_s: float = 0.5
    longest_s: float = 60.0
    stable_s: float = 60.0  # ready for so long: the count begins anew
    max_boot_failures: int = 3  # of an instance that was never ready: a person waits for the verdict
    # One whose generation has served meets a host that comes up slowly (a driver after a reboot): it is
    # `failed` after 3 minutes, and tried again every `longest_s` all the same.
    max_later_boot_failures: int = 10

    def delay_s(self, num_failures: int) -> float:
        """Seconds before the attempt that follows `num_failures` in a row (1, 2, 3 ...)."""
        doublings = min(max(num_failures - 1, 0), 32)
        return float(min(self.first_s * 2**doublings, self.longest_s))

    def gives_up(self, num_boot_failures: int, has_served: bool) -> bool:
        return num_boot_failures >= (self.max_later_boot_failures if has_served else self.max_boot_failures)
