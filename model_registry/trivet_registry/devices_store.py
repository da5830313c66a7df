"""Devices as the supervisor's probes last saw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from trivet.contract import DeviceInfo
from trivet_registry.tables import Device, utc_now


def save_devices(
    session: Session, devices: Iterable[DeviceInfo], reserved: Mapping[tuple[str, str], int] | None = None
) -> None:
    """Replace the table. `reserved` gives bytes by (kind, uid)."""
    session.execute(delete(Device))
    now = utc_now()
    for device in devices:
        session.add(
            Device(
                kind=device.kind,
                uid=device.uid,
                device_index=device.index,
                name=device.name,
                arch=device.arch,
                total_bytes=device.total_bytes,
                free_bytes=device.free_bytes,
                reserved_bytes=(reserved or {}).get((device.kind, device.uid), 0),
                dtypes=sorted(device.dtypes),
                versions=dict(device.versions),
                unusable_because=device.unusable_because,
                as_of=now,
            )
        )


def list_devices(session: Session) -> Sequence[Device]:
    """All devices, usable or not, by kind and index."""
    return session.scalars(select(Device).order_by(Device.kind, Device.device_index, Device.uid)).all()
