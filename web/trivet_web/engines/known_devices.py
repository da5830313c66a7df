"""The devices of a site whose launcher is not of this host alone: as the supervisor last saw them."""

from __future__ import annotations

from trivet.contract import Backend, DeviceInfo
from trivet.prober import Prober
from trivet_registry.database import Database
from trivet_registry.devices_store import list_devices
from trivet_registry.tables import Device


class KnownDevices(Prober):
    """A probe of this host would see others than those that a launch gets."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    def probe(self, name: str, backend: Backend, timeout_s: float) -> list[DeviceInfo]:
        """Some seconds old."""
        with self._database.reading() as session:
            return [_info(row) for row in list_devices(session) if row.kind == name]

    def bandwidth(self, name: str, backend: Backend, device: DeviceInfo, timeout_s: float) -> None:
        """It may be measured, and this is another host."""


def _info(row: Device) -> DeviceInfo:
    return DeviceInfo(
        kind=row.kind,
        index=row.device_index,
        uid=row.uid,
        name=row.name,
        arch=row.arch,
        total_bytes=row.total_bytes,
        free_bytes=row.free_bytes,
        dtypes=frozenset(row.dtypes),
        versions=tuple(sorted(row.versions.items())),
        unusable_because=row.unusable_because,
        host=row.host,
    )
