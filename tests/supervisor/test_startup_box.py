from __future__ import annotations

import socket

import psutil

from trivet.access import setup_code, urls_for_others
from trivet.config import Settings
from trivet_registry.tables import Device
from trivet_supervisor.startup_box import MAX_SHOWN, startup_box


def device(kind: str, reason: str | None = None) -> Device:
    return Device(
        kind=kind,
        uid="u",
        device_index=0,
        name=f"a {kind}",
        total_bytes=8 << 30,
        free_bytes=2 << 30,
        unusable_because=reason,
    )


def test_the_box_tells_where_everything_is() -> None:
    settings = Settings(home="/srv/trivet", port=8123)
    devices = [device("cpu"), device("null"), device("cuda", "no driver")]
    box = startup_box(settings, "secret", devices, 1.25)
    assert "http://127.0.0.1:8123/v1" in box
    assert "http://127.0.0.1:8123 " in box
    assert "secret" not in box
    assert f"http://127.0.0.1:8123/setup?token={setup_code('secret')}" in box
    assert "/srv/trivet" in box
    assert "cpu 0: a cpu, 2.0 of 8.0 GiB free" in box
    assert "a null" not in box
    assert "a cuda" not in box
    assert "1.2 s" in box
    assert len({len(line) for line in box.splitlines()}) == 1, "its right side is straight"


def test_once_there_are_users_no_link_carries_a_secret() -> None:
    box = startup_box(Settings(home="/srv/trivet", port=8123), "secret", [], 1.0, has_users=True)
    assert "http://127.0.0.1:8123 " in box
    assert "token" not in box
    assert "setup" not in box


def addresses_of_this_machine(family: socket.AddressFamily) -> list[str]:
    found = [ad.address for each in psutil.net_if_addrs().values() for ad in each if ad.family == family]
    return [ad for ad in found if not ad.startswith(("127.", "169.254."))]


def test_who_listens_everywhere_is_told_where_others_ask() -> None:
    box = startup_box(Settings(host="0.0.0.0", port=8123), "secret", [], 1.0)
    assert "http://127.0.0.1:8123/v1" in box
    shown = [line.split()[2] for line in box.splitlines() if " Others " in line]
    expected = [f"http://{address}:8123" for address in addresses_of_this_machine(socket.AF_INET)]
    assert shown == expected[:MAX_SHOWN]
    assert set(expected) <= set(urls_for_others(Settings(host="::", port=8123))), "which IPv4 reaches, too"


def test_who_listens_on_one_address_has_no_others() -> None:
    assert urls_for_others(Settings(host="127.0.0.1")) == urls_for_others(Settings(host="10.0.0.5")) == []
