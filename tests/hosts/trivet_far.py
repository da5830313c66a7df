"""A launcher for tests: its hosts are those of `far_hosts.json` in the home, their agents answer over tcp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import zmq

from trivet.config import Settings
from trivet.launching import Launcher
from trivet.plugins import hookimpl
from trivet_supervisor.hosts.agent_calls import HostSilent
from trivet_supervisor.hosts.remote_launcher import RemoteLauncher

PORT = 7070


class TcpHosts:
    """`agent_calls.Hosts`; a socket a call, so any thread may ask."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def names(self) -> Mapping[str, str]:
        known: dict[str, str] = json.loads(self._file.read_text())
        return known

    def trouble(self) -> str:
        return ""

    def call(self, host: str, message: bytes, timeout_s: float) -> bytes:
        address = self.names().get(host)
        if address is None:
            raise HostSilent(f"host {host} is not known")
        with zmq.Context.instance().socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(f"tcp://{address}:{PORT}")
            socket.send(message)
            if not socket.poll(int(timeout_s * 1000)):
                raise HostSilent(f"no answer from {address} within {timeout_s:g} s")
            return socket.recv()


@hookimpl
def trivet_launcher(settings: Settings) -> Launcher:
    """`far`."""
    return RemoteLauncher("far", TcpHosts(settings.paths.home / "far_hosts.json"), settings.paths)
