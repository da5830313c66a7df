"""Children of the registry's: what they say, whatever they say it in."""

from __future__ import annotations

import sys

from trivet_registry.child_process import run_child


def test_a_child_may_speak_as_its_host_does() -> None:
    says = "import os, sys; os.write(2, bytes([0xB4, 0xED]) + b' no driver'); sys.exit(3)"
    assert run_child([sys.executable, "-c", says], 60.0, lambda: None) == (3, "\ufffd\ufffd no driver")
