from __future__ import annotations

from trivet.access import setup_code
from trivet.config import Settings
from trivet_registry.tables import Device
from trivet_supervisor.startup_box import startup_box


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
