"""The table of `trivet devices`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trivet.commands.devices import strangers, usage_text
from trivet.optional_contract import DeviceUsage, DeviceUser


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (None, ""),
        (DeviceUsage(1, 2), ""),
        (DeviceUsage(1, 2, 0, 37, 91.4), "0 % 37 C 91.4 W"),
        (DeviceUsage(1, 2, temperature_c=40), "40 C"),
    ],
)
def test_of_use_only_what_is_known_is_said(usage: DeviceUsage | None, text: str) -> None:
    assert usage_text(usage) == text


def test_who_else_has_memory_on_a_device_is_told() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    environment = {**os.environ, "TRIVET_LEASE": "x"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as ours:
        assert ours.stdout is not None
        ours.stdout.readline()
        users = (DeviceUser(ours.pid, 1 << 30), DeviceUser(os.getpid(), 1 << 30), DeviceUser(2**22 + 1))
        told = strangers(DeviceUsage(1, 2, users=users))
        assert told[0].startswith(f"pid {os.getpid()} (")
        assert told[0].endswith(") holds 1.0 GiB and is none of Trivet's")
        assert told[1:] == [f"pid {2**22 + 1} (of another namespace) holds memory and is none of Trivet's"]
        assert ours.stdin is not None
        ours.stdin.close()
    assert strangers(None) == strangers(DeviceUsage(1, 2)) == []
