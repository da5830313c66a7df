"""Which bytes of which device are spoken for. A plan, a placement and the list of devices ask the same.

An engine on a device with memory of its own takes memory of its host, too: there that claim stands against
the device whose memory is the host's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trivet.contract import DeviceInfo


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory to which the plan of a live instance has a claim."""

    deployment: str
    instance: str
    backend: str
    device_uids: tuple[str, ...]
    size_bytes: int  # of each of its devices
    is_taken: bool  # its process holds it already, so a probe does not count it as free
    host_bytes: int = 0  # beside its devices, of the host that they are in
    host: str = ""  # as in `DeviceInfo`

    def on(self, device: DeviceInfo) -> int:
        """Bytes of this device."""
        is_own = device.kind == self.backend and device.uid in self.device_uids
        is_host = device.is_host_memory and device.host == self.host
        return (self.size_bytes if is_own else 0) + (self.host_bytes if is_host else 0)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What live instances hold."""

    holdings: Sequence[Holding] = ()
    gone: Sequence[Holding] = ()  # of instances that are thought to have ended

    def on(self, device: DeviceInfo) -> list[Holding]:
        """Those with a claim to this device."""
        return [holding for holding in self.holdings if holding.on(device)]

    def reserved_on(self, device: DeviceInfo) -> int:
        """Bytes of this device to which somebody has a claim."""
        return sum(holding.on(device) for holding in self.holdings)

    def left_on(self, device: DeviceInfo) -> DeviceInfo:
        """The device with as many free bytes as nobody has a claim to, if those `gone` were gone."""
        unspent = sum(holding.on(device) for holding in self.holdings if not holding.is_taken)
        returned = sum(holding.on(device) for holding in self.gone if holding.is_taken)
        free = min(
            device.free_bytes + returned - unspent,
            device.total_bytes - self.reserved_on(device),
        )
        return replace(device, free_bytes=max(0, free))

    def without(self, gone: Iterable[Holding]) -> Ledger:
        """As it would be if these had ended."""
        ended = tuple(gone)
        staying = tuple(holding for holding in self.holdings if holding not in ended)
        return Ledger(staying, (*self.gone, *ended))

    def without_all(self) -> Ledger:
        """As it would be if none of our instances were there."""
        return Ledger((), (*self.gone, *self.holdings))

    def has_more_than(self, earlier: Ledger) -> bool:
        """Whether something was reserved since: by an instance, or of a size, that was not there then."""
        known = {(h.instance, h.backend, h.device_uids, h.size_bytes) for h in earlier.holdings}
        return any((h.instance, h.backend, h.device_uids, h.size_bytes) not in known for h in self.holdings)

    def holders_on(self, devices: Iterable[DeviceInfo]) -> str:
        """The instances with a claim to these devices, for a sentence."""
        names = [
            f"{holding.deployment} ({holding.instance}, {holding.on(device) / 2**30:.2f} GiB)"
            for device in devices
            for holding in self.on(device)
        ]
        return ", ".join(dict.fromkeys(names)) or "other instances"
