"""The devices of a site, as the backends' probes see them; neither torch nor a vendor library loads."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from trivet.contract import Backend, DeviceInfo
from trivet.launching import PlacesOnHosts
from trivet.optional_contract import DeviceUsage, TellsUsage
from trivet.prober import Prober, faulty_backend

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
PROBE_TIMEOUT_S = 10.0
MAX_AGE_S = 2.0  # for a decision; free memory changes


class DeviceTable:
    """Latest probe of each backend. Thread-safe."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        clock: Callable[[], float] = time.monotonic,
        failures: Mapping[str, Exception] | None = None,
        elsewhere: PlacesOnHosts | None = None,
    ) -> None:
        """Probe nothing yet.

        Args:
            failures: plugins that could not be loaded, each shown as a device with the reason.
        elsewhere: the launcher, where it has hosts of its own: then these are asked, and not this one.
        """
        self._backends = backends
        self._elsewhere = elsewhere
        self._faulty = [faulty_backend(name, str(error)) for name, error in (failures or {}).items()]
        self._clock = clock
        self._prober = Prober()
        # One a backend: a probe that hangs must hold up nobody who asks for the devices of another.
        self._locks = {name: threading.Lock() for name in backends}
        self._probed: dict[str, tuple[float, tuple[DeviceInfo, ...]]] = {}
        self._usage: dict[str, tuple[float, dict[str, DeviceUsage]]] = {}  # asked when, by uid
        self.is_asked = threading.Event()  # somebody waits for the usage: it is not to wait its interval

    def of(self, backend: Backend, max_age_s: float = MAX_AGE_S) -> Sequence[DeviceInfo]:
        """All devices of a backend, probed anew where the last probe is older."""
        with self._locks[backend.name]:
            probed_s, devices = self._probed.get(backend.name, (None, ()))
            if probed_s is None or self._clock() - probed_s > max_age_s:
                devices = tuple(self._probe(backend))
                self._probed[backend.name] = self._clock(), devices
            return devices

    def _probe(self, backend: Backend) -> list[DeviceInfo]:
        if self._elsewhere is not None:
            return [_named_well(one) for one in self._elsewhere.devices(backend.name, PROBE_TIMEOUT_S)]
        return self._prober.probe(backend.name, backend, PROBE_TIMEOUT_S)

    def usage(self) -> dict[tuple[str, str], DeviceUsage]:
        """How busy devices are now, by (kind, uid); of those whose backend can tell."""
        found: dict[tuple[str, str], DeviceUsage] = {}
        for name, backend in self._backends.items():
            with self._locks[name]:  # a tool that is slow is not started twice at once
                _, devices = self._probed.get(name, (None, ()))
                if devices:
                    asked_s = self._clock()
                    told = self._ask_usage(name, backend)
                    self._usage[name] = asked_s, told
                    found |= {(name, uid): use for uid, use in told.items()}
        return found

    def _ask_usage(self, name: str, backend: Backend) -> dict[str, DeviceUsage]:
        if self._elsewhere is not None:
            return self._elsewhere.usage(name, PROBE_TIMEOUT_S)
        return self._prober.usage(name, backend, PROBE_TIMEOUT_S)

    def holders(
        self, backend: str, uids: Collection[str], pids: Collection[int], since_s: float
    ) -> frozenset[int] | None:
        """Those of `pids` that still have memory on the devices; of a backend that never tells, none.

        Returns at once. None: what is known is older than `since_s`, or its tool or its host has not
        answered. It is asked again, then and while they have some.
        """
        if not isinstance(self._backends.get(backend), TellsUsage):
            return frozenset()
        asked_s, told = self._usage.get(backend, (0.0, {}))
        users = [told[uid].users for uid in uids if uid in told]
        has_answered = len(users) == len(uids)
        if has_answered and not any(each is not None for each in users):
            return frozenset()  # its tool names no processes
        if asked_s < since_s or not has_answered:
            self.is_asked.set()
            return None
        found = frozenset(user.pid for each in users if each for user in each if user.pid in pids)
        if found:  # a driver gives memory back a moment after the end
            self.is_asked.set()
        return found

    def all(self, max_age_s: float = MAX_AGE_S) -> list[DeviceInfo]:
        found = [device for backend in self._backends.values() for device in self.of(backend, max_age_s)]
        return found + self._faulty


def _named_well(device: DeviceInfo) -> DeviceInfo:
    """A host's name stands before its devices' and is a folder's, so it must tell it apart."""
    if device.unusable_because is not None:  # a host that is silent has no device, and says why
        return device
    if HOST_NAME.fullmatch(device.host) and device.uid.startswith(f"{device.host}/"):
        return device
    reason = (
        f"host {device.host!r} cannot have device {device.uid!r}: a host's name is up to 63 letters, digits, "
        "'.', '_' and '-', and its devices' begin with it and a '/'"
    )
    return replace(device, unusable_because=reason)
