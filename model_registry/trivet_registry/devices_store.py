"""Devices as the supervisor's probes last saw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from trivet.contract import DeviceInfo
from trivet.engine.ledger import Ledger
from trivet.optional_contract import DeviceUsage
from trivet_registry.tables import Device, utc_now


def save_devices(
    session: Session,
    devices: Iterable[DeviceInfo],
    ledger: Ledger | None = None,
    usage: Mapping[tuple[str, str], DeviceUsage] | None = None,
    users: Mapping[tuple[str, str], list[dict[str, Any]]] | None = None,
) -> None:
    """Replace the table.

    `ledger` tells what is reserved; by (kind, uid) `usage` tells how busy a device is, and `users` who has
    memory there.
    """
    session.execute(delete(Device))
    now = utc_now()
    for device in devices:
        key = (device.kind, device.uid)
        use = (usage or {}).get(key)
        session.add(
            Device(
                kind=device.kind,
                uid=device.uid,
                host=device.host,
                device_index=device.index,
                name=device.name,
                arch=device.arch,
                total_bytes=device.total_bytes,
                free_bytes=device.free_bytes,
                reserved_bytes=ledger.reserved_on(device) if ledger else 0,
                used_bytes=use.used_bytes if use else None,
                utilisation_percent=use.utilisation_percent if use else None,
                temperature_c=use.temperature_c if use else None,
                power_w=use.power_w if use else None,
                users=(users or {}).get(key),
                dtypes=sorted(device.dtypes),
                versions=dict(device.versions),
                unusable_because=device.unusable_because,
                as_of=now,
            )
        )


def list_devices(session: Session) -> Sequence[Device]:
    """All devices, usable or not, by kind and index."""
    return session.scalars(select(Device).order_by(Device.kind, Device.device_index, Device.uid)).all()
