"""What `trivet serve` says when it is up."""

from __future__ import annotations

from collections.abc import Sequence

from trivet import __version__
from trivet.access import local_url, setup_code, urls_for_others
from trivet.config import Settings
from trivet_registry.tables import Device

GIB = 1 << 30
MAX_SHOWN = 4  # addresses: a host of containers has many


def startup_box(
    settings: Settings, token: str, devices: Sequence[Device], took_s: float, has_users: bool = False
) -> str:
    """A box for a terminal.

    The token is not in it: output ends up in logs, and the token opens the site for good. The setup link
    makes the first admin, and is of no use afterwards.
    """
    url = local_url(settings)
    usable = [d for d in devices if d.unusable_because is None and d.kind != "null"]
    rows = [
        ("API", f"{url}/v1"),
        ("Console", url),
        *(("Others", other) for other in urls_for_others(settings)[:MAX_SHOWN]),
        *([] if has_users else [("Setup", f"{url}/setup?token={setup_code(token)}")]),
        ("Home", str(settings.paths.home)),
        *(("Device", _device(device)) for device in usable),
    ]
    lines = [f"{name:<9}{value}" for name, value in rows]
    lines.append(f"Up in {took_s:.1f} s. Ctrl-C finishes running requests, then stops everything.")
    title = f" Trivet {__version__} "
    width = max(len(line) for line in lines)
    top = f"╭─{title}{'─' * (width - len(title) + 1)}╮"
    body = [f"│ {line:<{width}} │" for line in lines]
    return "\n".join([top, *body, f"╰{'─' * (width + 2)}╯"])


def _device(device: Device) -> str:
    free, total = device.free_bytes / GIB, device.total_bytes / GIB
    return f"{device.kind} {device.device_index}: {device.name}, {free:.1f} of {total:.1f} GiB free"
