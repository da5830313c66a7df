"""Whose the processes on a device are: an instance of this site, or a stranger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trivet.contract import DeviceInfo
from trivet.optional_contract import DeviceUsage
from trivet_registry.tables import Instance

Users = dict[tuple[str, str], list[dict[str, Any]]]  # by (kind, uid), as the registry keeps them


def users_of(
    usage: Mapping[tuple[str, str], DeviceUsage], instances: Iterable[Instance], devices: Iterable[DeviceInfo]
) -> Users:
    """Of the devices whose backend tells; each user with the instance it belongs to, None for a stranger."""
    hosts = {(device.kind, device.uid): device.host for device in devices}
    owners: dict[tuple[str, int], str] = {}  # a pid is of its host alone
    for instance in instances:
        pids = [each["pid"] for each in instance.processes or []]
        owners |= {(instance.host or "", p): instance.id for p in [*pids, instance.pid] if p is not None}
    return {
        key: [
            {
                "pid": user.pid,
                "name": user.name if hosts.get(key) else process_name(user.pid),
                "used_bytes": user.used_bytes,
                "instance": owners.get((hosts.get(key, ""), user.pid)),
            }
            for user in told.users
        ]
        for key, told in usage.items()
        if told.users is not None
    }


def process_name(pid: int) -> str:
    """Empty where it is gone, or of another namespace."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
