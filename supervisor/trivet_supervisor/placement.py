"""Where an instance runs: a backend and devices on which the plan of its model fits.

"auto" takes the first backend of `AUTO_ORDER` with a usable device whose plan fits. What a plan may count
on is what the ledger leaves: instances that are still loading have a claim to memory that is free yet.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trivet.contract import Backend, DeviceInfo, MemoryPlan, RunnerConfig
from trivet.engine import backend_answers
from trivet.engine.device_groups import device_groups
from trivet.engine.ledger import Ledger
from trivet.engine.measured_peaks import NOWHERE, PeakStore
from trivet.engine.placement import AUTO_ORDER, Placement, planned_spec, runner_config
from trivet.engine_settings import EngineSettings
from trivet.errors import DoesNotFit, ModelFilesError, Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet.plugins import PluginHost
from trivet_registry.tables import Version
from trivet_supervisor.devices import DeviceTable

MAX_OPEN_MODELS = 8  # headers of the models that were placed last


class NoRoom(DoesNotFit):
    """It would fit if instances that run now were stopped, or did fit before: worth waiting for."""

    older: frozenset[str] = frozenset()  # ids of the deployment's own instances of earlier generations
    fits_without_older = False  # to stop those would do


class FilesChanged(ModelFilesError):
    """A model file has other bytes than those registered: only a person can tell which are right."""


class Placer:
    """Plans through the torch-free half of the backends."""

    def __init__(self, host: PluginHost, devices: DeviceTable, peaks: PeakStore = NOWHERE) -> None:
        self._host = host
        self._devices = devices
        self._peaks = peaks
        self._opened: OrderedDict[str, ModelFiles] = OrderedDict()  # by content and name, for ids come again
        self._opened_lock = threading.Lock()  # each placing has a thread of its own

    def place(
        self, version: Version, settings: EngineSettings, backend: str, device: str | None, ledger: Ledger
    ) -> Placement:
        """Choose and plan: on the first backend of `backend` ("auto", or names with commas) that has room.

        `device` names one device or several, by uid or index, with commas.

        Raises: NoRoom; DoesNotFit; Unsupported; ModelFilesError, of which FilesChanged. The reasons are the
        backends' own.
        """
        files = self._open(version)
        spec = planned_spec(files)
        config = runner_config(settings, spec)
        backend_answers.check_context(files, spec, config)
        names = self._names(backend)
        refusals: list[tuple[str, Unsupported | DoesNotFit]] = []
        for name in names:
            try:
                placement = self._place_on(self._host.backend(name), files, config, device, ledger)
            except (Unsupported, DoesNotFit) as error:
                refusals.append((name, error))
            else:
                return replace(placement, passed_over=dict(refusals))
        raise _summary(files.name, refusals)

    def _names(self, backend: str) -> list[str]:
        if backend == "auto":
            return [name for name in AUTO_ORDER if name in self._host.backends]
        return backend.split(",")

    def _place_on(
        self,
        backend: Backend,
        files: ModelFiles,
        config: RunnerConfig,
        device: str | None,
        ledger: Ledger,
    ) -> Placement:
        spec = planned_spec(files)
        candidates = device_groups(
            backend, self._devices.of(backend), device, config.tensor_parallel, ledger.left_on
        )
        candidates.sort(key=lambda group: -min(ledger.left_on(d).free_bytes for d in group))
        refusals: list[tuple[str, Unsupported | DoesNotFit]] = []  # by device

        def plan_on(devices: Sequence[DeviceInfo]) -> MemoryPlan:
            told = self._peaks.told(config, backend.name, files, devices)
            return backend_answers.plan(backend, spec, files, told, devices)

        for group in candidates:
            try:
                for chosen in group:
                    backend_answers.check(backend, spec, files, config, chosen)
                return Placement(backend, tuple(group), config, _plan_within(plan_on, group, ledger))
            except (Unsupported, DoesNotFit) as error:  # another kind of device may take it
                refusals.append((",".join(one.uid for one in group), error))
        raise _of_all_devices(refusals)

    def _open(self, version: Version) -> ModelFiles:
        """Raises: ModelFilesError, also where a file has changed since it was registered."""
        for file in version.files:
            _check_unchanged(file["name"], file["size_bytes"], file["mtime_ns"])
        key = f"{version.fingerprint} {version.reference}"
        with self._opened_lock:
            files = self._opened.get(key)
        if files is None:  # sentences name the model, not its folder
            files = replace(open_model(version.path, self._host), name=version.reference)
        with self._opened_lock:
            self._opened[key] = files
            self._opened.move_to_end(key)
            if len(self._opened) > MAX_OPEN_MODELS:
                self._opened.popitem(last=False)
        return files


def _plan_within(
    plan_on: Callable[[Sequence[DeviceInfo]], MemoryPlan], group: Sequence[DeviceInfo], ledger: Ledger
) -> MemoryPlan:
    """A plan for what the ledger leaves.

    Raises: NoRoom where it would fit if the other instances were gone; DoesNotFit where it never would.
    """
    try:
        plan = plan_on([ledger.left_on(device) for device in group])
        _check_ledger(plan, group, ledger)
        return plan
    except DoesNotFit as error:
        if not any(ledger.on(device) for device in group):
            raise
        plan_on([ledger.without_all().left_on(device) for device in group])
        raise NoRoom(f"{error}; it would fit without {ledger.holders_on(group)}") from error


def _of_all_devices(
    refusals: Sequence[tuple[str, Unsupported | DoesNotFit]],
) -> Unsupported | DoesNotFit:
    if len({str(error) for _, error in refusals}) == 1:
        return refusals[0][1]
    return _same_kind("; ".join(f"{device}: {error}" for device, error in refusals), refusals)


def _same_kind(
    told: str, refusals: Sequence[tuple[str, Unsupported | DoesNotFit]]
) -> Unsupported | DoesNotFit:
    """An error of these words; what is worth waiting for comes before what may fit elsewhere."""
    for kind in (NoRoom, DoesNotFit):
        if any(isinstance(error, kind) for _, error in refusals):
            return kind(told)
    return Unsupported(told)


def _check_ledger(plan: MemoryPlan, group: Sequence[DeviceInfo], ledger: Ledger) -> None:
    """A plan for a share of the whole device must not take what is promised to others."""
    for device in group:
        left = ledger.left_on(device).free_bytes
        if ledger.on(device) and plan.total_bytes > left:
            raise DoesNotFit(
                f"it needs {plan.total_bytes / 2**30:.2f} GiB; {device.uid} has {left / 2**30:.2f} GiB left"
            )


def _check_unchanged(name: str, size_bytes: int, mtime_ns: int) -> None:
    try:
        status = Path(name).stat()
    except OSError as error:
        raise ModelFilesError(
            f"model file {name} cannot be read: {error.strerror}; put it back, or register the model again"
        ) from error
    if (status.st_size, status.st_mtime_ns) != (size_bytes, mtime_ns):
        raise FilesChanged(
            f"model file {name} has changed since it was registered ({size_bytes} bytes then, "
            f"{status.st_size} now); register it again: trivet models add"
        )


def _summary(
    model: str, refusals: Sequence[tuple[str, Unsupported | DoesNotFit]]
) -> Unsupported | DoesNotFit:
    if len(refusals) == 1:
        return refusals[0][1]
    return _same_kind(backend_answers.none_can_run(model, refusals), refusals)
