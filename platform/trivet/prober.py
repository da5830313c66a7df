"""Asks backends for their devices, so that one whose probe misbehaves costs nothing but its own devices.

`contract.Backend.probe` never raises and keeps its deadline, but a plugin is a stranger's code: it is asked
on a thread of its own, and what goes wrong becomes an unusable device that names the backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trivet.contract import Backend, DeviceInfo
from trivet.optional_contract import (
    Advice,
    DeviceUsage,
    GivesAdvice,
    SaysWhyAbsent,
    TellsBandwidth,
    TellsUsage,
)

GRACE_S = 2.0  # past the probe's own deadline: it may have to kill a vendor's tool and wait for its end


@dataclass(slots=True)
class _Call:
    """One call into a backend, which may never return."""

    ask: Callable[[], object]
    answer: object = None
    failure: str = ""
    thread: threading.Thread = field(init=False)

    def start(self, name: str) -> None:
        # A daemon: a thread that hangs in a driver must not keep the process from ending.
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.answer = self.ask()
        except (Exception, SystemExit) as error:  # a stranger's code may raise anything
            self.failure = f"raised {type(error).__name__}: {error}"


class Prober:
    """A backend whose last probe still hangs is not asked again: its threads would pile up. Thread-safe."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._hanging: dict[str, _Call] = {}

    def probe(self, name: str, backend: Backend, timeout_s: float) -> list[DeviceInfo]:
        """All devices; where the probe failed, one that is unusable because of that. Never raises."""
        found, failure = self._ask(name, "probe", lambda: backend.probe(timeout_s), timeout_s)
        if failure:
            return [faulty_backend(name, failure)]
        if not isinstance(found, list | tuple) or not all(isinstance(d, DeviceInfo) for d in found):
            return [faulty_backend(name, f"probe returned {_shown(found)} and not a list of DeviceInfo")]
        return list(found)

    def why_absent(self, name: str, backend: Backend, timeout_s: float) -> str:
        """Why it sees no device, in its own words where it has some. Never raises."""
        if not isinstance(backend, SaysWhyAbsent):
            return "no device found"
        said, failure = self._ask(name, "absent_because", backend.absent_because, timeout_s)
        return failure or (said if isinstance(said, str) and said else "no device found")

    def advice(
        self, name: str, backend: Backend, installed: Mapping[str, str], timeout_s: float
    ) -> list[Advice]:
        """What it says of its host and of the packages that its engines find. Never raises."""
        if not isinstance(backend, GivesAdvice):
            return []
        said, failure = self._ask(name, "advice", lambda: backend.advice(installed), timeout_s)
        if failure:
            return [Advice("warn", failure)]
        return [line for line in said if isinstance(line, Advice)] if isinstance(said, list) else []

    def usage(self, name: str, backend: Backend, timeout_s: float) -> dict[str, DeviceUsage]:
        """How busy its devices are, by uid, as far as it says. Never raises."""
        if not isinstance(backend, TellsUsage):
            return {}
        said, failure = self._ask(name, "usage", backend.usage, timeout_s)
        if failure or not isinstance(said, dict):
            return {}
        return {str(uid): use for uid, use in said.items() if isinstance(use, DeviceUsage)}

    def bandwidth(self, name: str, backend: Backend, device: DeviceInfo, timeout_s: float) -> float | None:
        """How fast the device reads its memory, in bytes/s; None where it does not say. Never raises."""
        if not isinstance(backend, TellsBandwidth):
            return None
        said, failure = self._ask(name, "bandwidth", lambda: backend.bandwidth(device), timeout_s)
        return float(said) if not failure and isinstance(said, int | float) and said > 0 else None

    def _ask(self, name: str, what: str, ask: Callable[[], object], timeout_s: float) -> tuple[object, str]:
        """The answer, or a sentence that says why there is none."""
        before = self._hanging.get(name)
        if before is not None and before.thread.is_alive():
            return None, f"{before.thread.name} still hangs, so it is not asked again"
        call = _Call(ask)
        call.start(what)
        call.thread.join(timeout_s + self._grace_s)
        if call.thread.is_alive():
            self._hanging[name] = call
            return None, f"{what} gave no answer within {timeout_s + self._grace_s:g} s"
        return call.answer, f"{what} {call.failure}" if call.failure else ""


def faulty_backend(name: str, failure: str) -> DeviceInfo:
    """What stands for the devices of a backend that cannot be asked for them."""
    return DeviceInfo(name, 0, name, "", "", 0, 0, frozenset(), (), f"backend {name} is faulty: {failure}")


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        stray = next(each for each in value if not isinstance(each, DeviceInfo))
        return f"a {type(value).__name__} with a {type(stray).__name__}"
    return "None" if value is None else f"a {type(value).__name__}"
