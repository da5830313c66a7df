"""`trivet devices`: what the installed backends see on this host, and why not where they see nothing.

Where the site's launcher has hosts of its own, its server is asked: what they have, its supervisor knows.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet.commands.output import add_json_option, bytes_text, note, print_json, print_table
from trivet.contract import Backend, DeviceInfo
from trivet.errors import Unavailable
from trivet.launching import LEASE_VARIABLE
from trivet.optional_contract import DeviceUsage
from trivet.plugins import Command, load_plugins
from trivet.prober import Prober

if TYPE_CHECKING:
    from trivet.client.results import Device

PROBE_TIMEOUT_S = 10.0
HEADERS = ("BACKEND", "INDEX", "UID", "NAME", "ARCH", "MEMORY", "FREE", "USE", "DTYPES", "STATE")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="include the null backend, which is for tests")
    add_json_option(parser)


def _run(given: argparse.Namespace) -> int:
    known = _devices_of_hosts()
    if known is not None:
        return _print_known([device for device in known if given.all or device.kind != "null"], given.json)
    return _print_probed(given)


def _devices_of_hosts() -> list[Device] | None:
    """None where it is this host that serves, or where no server answers."""
    from trivet.config import load_settings
    from trivet.launching import PlacesOnHosts

    settings = load_settings()
    if settings.launcher == "local" or not settings.paths.url_file.exists():
        return None
    if not isinstance(load_plugins().launcher(settings), PlacesOnHosts):
        return None
    from trivet.client import Client

    try:
        with Client() as client:
            return list(client.devices())
    except Unavailable:  # its serve was killed, or has just begun
        return None


def _print_known(devices: list[Device], as_json: bool) -> int:
    if as_json:
        print_json(devices)
        return 0
    told = [(_info(device), _usage(device)) for device in devices]
    print_table(HEADERS, [_row(info, usage) for info, usage in told])
    for device in devices:
        for user in device.users or ():
            if user.instance is None:
                held = "memory" if user.used_bytes is None else bytes_text(user.used_bytes)
                note(f"{device.uid}: pid {user.pid} ({user.name}) holds {held} and is none of Trivet's")
    return 0


def _info(device: Device) -> DeviceInfo:
    return DeviceInfo(
        kind=device.kind,
        index=device.index,
        uid=device.uid,
        name=device.name,
        arch=device.arch,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        dtypes=frozenset(device.dtypes),
        unusable_because=device.unusable_because,
        host=device.host,
    )


def _usage(device: Device) -> DeviceUsage:
    return DeviceUsage(
        device.used_bytes or 0,
        device.total_bytes,
        device.utilisation_percent,
        device.temperature_c,
        device.power_w,
    )


def _print_probed(given: argparse.Namespace) -> int:
    host, prober = load_plugins(), Prober()
    backends = host.backends
    found = probe_all(prober, backends, with_null=given.all)
    usage = {
        name: prober.usage(name, backends[name], PROBE_TIMEOUT_S) if seen else {}
        for name, seen in found.items()
    }
    if given.json:
        print_json([_as_object(d, usage[name].get(d.uid)) for name, seen in found.items() for d in seen])
        return 0
    rows: list[list[object]] = []
    for name, seen in found.items():
        rows += [_row(device, usage[name].get(device.uid)) for device in seen]
        if not seen:
            rows.append([name, *[None] * 8, prober.why_absent(name, backends[name], PROBE_TIMEOUT_S)])
    print_table(HEADERS, rows)
    for name, seen in found.items():
        for device in seen:
            for line in strangers(usage[name].get(device.uid)):
                note(f"{name} {device.index}: {line}")
    return 0


def probe_all(
    prober: Prober, backends: Mapping[str, Backend], *, with_null: bool = False
) -> dict[str, list[DeviceInfo]]:
    """Every backend's devices, usable or with the reason why not."""
    return {
        name: prober.probe(name, backend, PROBE_TIMEOUT_S)
        for name, backend in sorted(backends.items())
        if with_null or name != "null"
    }


def _as_object(device: DeviceInfo, usage: DeviceUsage | None) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(device)
    return {**found, "usage": usage}


def _row(device: DeviceInfo, usage: DeviceUsage | None) -> list[object]:
    return [
        device.kind,
        device.index,
        device.uid,
        device.name,
        device.arch,
        bytes_text(device.total_bytes) if device.total_bytes else None,
        bytes_text(device.free_bytes) if device.total_bytes else None,
        usage_text(usage),
        ",".join(sorted(device.dtypes)),
        device.unusable_because or "usable",
    ]


def usage_text(usage: DeviceUsage | None) -> str:
    """Load, temperature and power, as far as they are known: "12 % 37 C 91 W"."""
    if usage is None:
        return ""
    known = ((usage.utilisation_percent, "%"), (usage.temperature_c, "C"), (usage.power_w, "W"))
    return " ".join(f"{value:g} {unit}" for value, unit in known if value is not None)


def strangers(usage: DeviceUsage | None) -> list[str]:
    """A sentence for each process with memory there that no Trivet has started."""
    users = (usage.users or ()) if usage else ()
    return [
        f"pid {user.pid} ({_name_of(user.pid)}) holds "
        f"{'memory' if user.used_bytes is None else bytes_text(user.used_bytes)} and is none of Trivet's"
        for user in users
        if not _is_ours(user.pid)
    ]


def _is_ours(pid: int) -> bool:
    """By the lease in its environment, which is that of its start."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # another account's
        return False
    return any(entry.startswith(f"{LEASE_VARIABLE}=".encode()) for entry in environ.split(b"\0"))


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "of another namespace"


COMMANDS = (
    Command("devices", "list the devices of this host, or of all hosts of its site", _add_arguments, _run),
)
