"""Backends with devices of a test's choice, and the placer over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trivet.contract import (
    Backend,
    DeviceInfo,
    KVCacheSpec,
    KVGroup,
    KVKind,
    MemoryPart,
    MemoryPlan,
    Runner,
    RunnerConfig,
)
from trivet.engine.measured_peaks import NOWHERE, PeakStore
from trivet.errors import DoesNotFit, Unsupported
from trivet.plugins import PluginHost, hookimpl
from trivet_supervisor.devices import DeviceTable
from trivet_supervisor.placement import Placer


class MadeUp:
    """A backend with devices of the test's choice; a plan takes `need` bytes."""

    def __init__(self, name: str, devices: Sequence[DeviceInfo], need: int = 100, refuses: str = "") -> None:
        self.name = name
        self.devices = list(devices)
        self.need = need
        self.refuses = refuses
        self.num_probes = 0
        self.weights: Any = None  # of the last plan
        self.config: RunnerConfig | None = None  # as well

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        self.num_probes += 1
        return self.devices

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        return {}

    def check(self, spec: Any, weights: Any, config: RunnerConfig, device: DeviceInfo) -> None:
        if self.refuses:
            raise Unsupported(self.refuses)

    def plan(
        self, spec: Any, weights: Any, config: RunnerConfig, devices: Sequence[DeviceInfo]
    ) -> MemoryPlan:
        self.weights, self.config = weights, config
        free = min(device.free_bytes for device in devices)
        if self.need > free:
            raise DoesNotFit(f"it needs {self.need} bytes and {free} are free on {devices[0].uid}")
        kv = KVCacheSpec(16, (KVGroup(KVKind.FULL, (0,), "f32", 1),))
        return MemoryPlan(kv, (2,), 0, (MemoryPart("kv", self.need),), 256, 2048)

    def create_runner(self, *_: Any) -> Runner:
        raise NotImplementedError


def device(kind: str, index: int = 0, **fields: Any) -> DeviceInfo:
    made = DeviceInfo(
        kind=kind,
        index=index,
        uid=f"{kind}{index}",
        name="",
        arch="",
        total_bytes=1000,
        free_bytes=1000,
        dtypes=frozenset(),
    )
    return replace(made, **fields)


def placer(*backends: Backend, peaks: PeakStore = NOWHERE) -> Placer:
    host = PluginHost()
    for backend in backends:

        class Plugin:
            @hookimpl
            def trivet_backend(self, backend: Backend = backend) -> Backend:
                return backend

        host.register(Plugin(), backend.name)
    return Placer(host, DeviceTable(host.backends), peaks)
