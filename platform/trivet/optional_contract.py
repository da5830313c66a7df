"""What a backend or a runner may offer beside `contract`; each is optional, and looked for by `isinstance`.

Like `contract` this imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from trivet.contract import DeviceInfo


@runtime_checkable
class SaysWhyAbsent(Protocol):
    """A backend that can tell why `probe` finds no device; optional, for `trivet doctor`."""

    def absent_because(self) -> str:
        """What was looked for and not found; empty where there is a device."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A line of `trivet doctor` about a kind of hardware."""

    status: Literal["ok", "warn", "fail"]
    text: str
    cure: str = ""


@runtime_checkable
class GivesAdvice(Protocol):
    """A backend that knows what belongs together on its hosts; optional, for `trivet doctor`."""

    def advice(self, installed: Mapping[str, str]) -> list[Advice]:
        """Nothing where there is no device.

        Args:
            installed: versions by package (trivet, torch, torch-npu) in the environment of its engines.
        """


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process that has memory on a device."""

    pid: int
    used_bytes: int | None = None
    name: str = ""  # of the process, where another host was asked


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """How busy a device is now; None where its tool does not say."""

    used_bytes: int
    total_bytes: int
    utilisation_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    users: tuple[DeviceUser, ...] | None = None  # every process with memory there, whoever's it is


@runtime_checkable
class TellsUsage(Protocol):
    """A backend whose tool tells load, temperature and power; optional, for `trivet devices`."""

    def usage(self) -> dict[str, DeviceUsage]:
        """By uid, now; without the devices of which nothing is known."""


@runtime_checkable
class TellsBandwidth(Protocol):
    """A backend that knows how fast a device reads its memory; optional, for the speeds of `trivet plan`."""

    def bandwidth(self, device: DeviceInfo) -> float | None:
        """Bytes/s, measured or of the data sheet; None where it is not known."""


@runtime_checkable
class GivesNotices(Protocol):
    """A runner that may work in a worse way than it could; optional, for `trivet ps` and `trivet doctor`."""

    def notices(self) -> tuple[str, ...]:
        """One sentence each, final once `warm_up` has returned; empty where all is as it should be."""


@runtime_checkable
class MeasuresPeaks(Protocol):
    """A runner whose device tells what a step took at most; optional, for the next plan (`Peaks`)."""

    def peaks(self) -> dict[str, int]:
        """Bytes by the plan's names, of the largest rank; empty before `warm_up` has measured.

        There too where `warm_up` has refused because of them.
        """


@runtime_checkable
class HasRanks(Protocol):
    """A runner over several processes; optional, for an engine that is idle."""

    def check_ranks(self) -> None:
        """Asked between steps. Raises: DeviceLost where one of them has ended."""
