"""`trivet devices`: what the installed backends see on this host, and why not where they see nothing."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trivet.commands.output import add_json_option, bytes_text, note, print_json, print_table
from trivet.contract import Backend, DeviceInfo
from trivet.launching import LEASE_VARIABLE
from trivet.optional_contract import DeviceUsage
from trivet.plugins import Command, load_plugins
from trivet.prober import Prober

PROBE_TIMEOUT_S = 10.0
HEADERS = ("BACKEND", "INDEX", "UID", "NAME", "ARCH", "MEMORY", "FREE", "USE", "DTYPES", "STATE")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="include the null backend, which is for tests")
    add_json_option(parser)


def _run(given: argparse.Namespace) -> int:
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


COMMANDS = (Command("devices", "list the devices of this host", _add_arguments, _run),)
