"""What `/metrics` says of devices: rows of the registry that the supervisor renews every ten seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from prometheus_client.metrics_core import GaugeMetricFamily
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from trivet import metrics
from trivet.metrics import Metric
from trivet_registry.database import Database
from trivet_registry.devices_store import list_devices
from trivet_registry.tables import Device, utc_now

MAX_AGE = timedelta(seconds=60)  # older rows are no news: the supervisor is away

_OF_DEVICE: dict[Metric, Callable[[Device], float | None]] = {
    metrics.DEVICE_USABLE: lambda device: float(device.unusable_because is None),
    metrics.DEVICE_MEMORY_TOTAL: lambda device: _known(device, device.total_bytes),
    metrics.DEVICE_MEMORY_USED: lambda device: _known(device, _used_bytes(device)),
    metrics.DEVICE_MEMORY_RESERVED: lambda device: device.reserved_bytes,
    metrics.DEVICE_UTILISATION: lambda device: _scaled(device.utilisation_percent),
    metrics.DEVICE_TEMPERATURE: lambda device: device.temperature_c,
    metrics.DEVICE_POWER: lambda device: device.power_w,
}


def device_families(database: Database) -> Iterator[GaugeMetricFamily]:
    """Every family; one has a sample for each device of which its figure is known."""
    devices = _seen_of_late(database)
    for metric, value_of in _OF_DEVICE.items():
        family = GaugeMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        for device in devices:
            value = value_of(device)
            if value is not None:
                family.add_metric((device.kind, device.uid), value)
        yield family


def _seen_of_late(database: Database) -> Sequence[Device]:
    """None where the registry cannot be read: the page tells what else is known.

    A device that is made up for tests (of kind `null`) is one only while something is placed on it.
    """
    try:
        with database.reading() as session:
            seen = [row for row in list_devices(session) if utc_now() - row.as_of < MAX_AGE]
            return [row for row in seen if row.kind != "null" or row.reserved_bytes]
    except (DBAPIError, PoolTimeout):
        return []


def _used_bytes(device: Device) -> int:
    return device.total_bytes - device.free_bytes if device.used_bytes is None else device.used_bytes


def _known(device: Device, size_bytes: int) -> int | None:
    """A device of which only an address is known has no memory in its row."""
    return size_bytes if device.total_bytes else None


def _scaled(percent: int | None) -> float | None:
    return None if percent is None else percent / 100
