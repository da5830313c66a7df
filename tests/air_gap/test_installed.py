"""A site without a network serves, and asks for none; `tests/run airgap` also installs it so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from air_gap import AirGap

TRIVET = Path(sys.executable).with_name("trivet")
ASK = """
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    socket.socket(type=kind).connect_ex(("192.0.2.1", 9))
"""


def test_a_site_serves_chats_and_shows_its_console_without_asking_anybody(air_gap: AirGap) -> None:
    air_gap.serve(TRIVET)
    air_gap.run(TRIVET, "launch", find_demo_model(), "--name", "m", "--backend", "null")
    said = air_gap.use_site(Path(sys.executable), "m")
    assert "chat:" in said
    assert "console:" in said
    assert air_gap.stop() == 0
    assert air_gap.attempts() == 0


def test_who_asks_is_counted(air_gap: AirGap) -> None:
    air_gap.run(sys.executable, "-c", ASK)
    assert air_gap.attempts() == 2
