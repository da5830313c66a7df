"""A launcher and the agent of a host, between them nothing but bytes that a test may hold up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from trivet import __version__
from trivet.config import BackendSettings, Settings
from trivet.launching import EngineHandle, ProcessOrder
from trivet.messages import LaunchOrder
from trivet_supervisor.hosts.agent_calls import HostSilent
from trivet_supervisor.hosts.host_agent import HostAgent
from trivet_supervisor.hosts.remote_launcher import RemoteLauncher

T = TypeVar("T")


LEASE = f"remote-launcher-{os.getpid()}"


ENGINE = """#!/bin/sh
echo "told by $4"
exec sleep 600
"""


class Wire:
    """`agent_calls.Hosts` of one host, b."""

    def __init__(self, agent: HostAgent) -> None:
        self.agent = agent
        self.is_cut = False

    def names(self) -> Mapping[str, str]:
        return {"b": "127.0.0.1"}

    def trouble(self) -> str:
        return ""

    def call(self, host: str, message: bytes, timeout_s: float) -> bytes:
        if self.is_cut or host != "b":
            raise HostSilent("no route")
        return self.agent.answer(message)


class Far:
    """A launcher here, and host b with a home of its own."""

    def __init__(self, folder: Path, script: str = ENGINE) -> None:
        self.here = Settings(home=str(folder / "here"))
        self.here.paths.create()
        python = folder / "python"
        python.write_text(script)
        python.chmod(0o755)
        self.there = Settings(home=str(folder / "b"), backend={"null": BackendSettings(python=str(python))})
        self.agents: list[HostAgent] = []
        self.wire = Wire(self.new_agent())
        self.launcher = RemoteLauncher("far", self.wire, self.here.paths)
        self.log = self.here.paths.logs / "m" / "i-1.log"

    def new_agent(self) -> HostAgent:
        self.agents.append(HostAgent("b", "127.0.0.1", self.there))
        return self.agents[-1]

    @property
    def folder(self) -> Path:
        return self.there.paths.home / "hosts" / "b"

    def start(self, lease: str = LEASE, device_uids: Sequence[str] = ()) -> EngineHandle:
        launch = order_of("i", lease, device_uids)
        return self.launcher.start(ProcessOrder(launch, ["not used"], {}, self.log, host="b"))


def order_of(instance_id: str, lease: str, device_uids: Sequence[str] = ()) -> LaunchOrder:
    return LaunchOrder(
        instance_id=instance_id,
        lease=lease,
        model_path="m",
        served_model_name="m",
        backend="null",
        device_uids=list(device_uids),
        settings={},
        run_dir="not used",
        version=__version__,
    )


def eventually(get: Callable[[], T | None], deadline_s: float = 60.0) -> T:
    """What it gets, once that is something."""
    deadline = time.monotonic() + deadline_s
    while not (found := get()):
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s"
        time.sleep(0.01)
    return found
