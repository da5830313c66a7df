"""A streaming server in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class SseServer:
    """A running `sse_server.py`."""

    url: str
    process: subprocess.Popen[str]
    FIRST_S: float = 0.05
    GAP_S: float = 0.01

    def heard(self) -> Any:
        """What it was asked so far, and over how many connections (this call's own included)."""
        with urllib.request.urlopen(f"{self.url}/requests", timeout=30) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def start_sse_server() -> Iterator[Callable[[], SseServer]]:
    """Starts servers, which end with the module."""
    started: list[SseServer] = []

    def start() -> SseServer:
        script = Path(__file__).parent / "sse_server.py"
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        started.append(SseServer(f"http://127.0.0.1:{port}", process))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.communicate()


@pytest.fixture
def sse_server(start_sse_server: Callable[[], SseServer]) -> SseServer:
    """A server of this test's own: it may be asked to die."""
    return start_sse_server()
