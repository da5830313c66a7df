"""The actor of a node: it keeps the host's agent running, which is a process of its own."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import trivet
from trivet.config import load_settings
from trivet.errors import TrivetError
from trivet_supervisor.hosts.agent_keeper import installed_version, keep_agent
from trivet_supervisor.hosts.agent_way import AgentAddress
from trivet_supervisor.hosts.over_ray.calls import Host

RAYLET = "raylet"
AGAIN_S = 15.0  # after a failure: each attempt starts a process


class RayAgent:
    """Runs in a worker process of Ray, which may be killed at any time."""

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._address = address
        self._failed_s = -math.inf
        self._trouble = ""

    def keep(self, site_key: str) -> Host:
        """What is wrong here is an answer, too."""
        if installed_version() != trivet.__version__:
            os._exit(1)  # Ray starts the actor again, with the code that is installed now
        if time.monotonic() - self._failed_s < AGAIN_S:
            return Host(trouble=self._trouble)
        try:
            environ = node_environment()
            home = Path(environ.get("TRIVET_HOME") or load_settings().home).expanduser()
            note = keep_agent(home, self._name, self._address, site_key, environ)
        except (TrivetError, OSError) as error:
            self._failed_s, self._trouble = time.monotonic(), str(error)
            return Host(trouble=self._trouble)
        return Host(AgentAddress(note.address, note.port, note.key))


def node_environment() -> dict[str, str]:
    """What `ray start` was started with.

    A worker's own environment is Ray's: it hides all GPUs and NPUs (an actor that asks for none has none),
    sets the number of threads, and names the node's sockets.
    """
    pid = os.getppid()
    while pid > 1 and _name(pid) != RAYLET:
        pid = _parent(pid)
    source = Path(f"/proc/{pid if pid > 1 else 'self'}/environ").read_bytes()
    pairs = (each.decode(errors="surrogateescape").partition("=") for each in source.split(b"\0") if each)
    return {name: value for name, _, value in pairs if not name.startswith("RAY_")}


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat[stat.rindex(")") + 2 :].split()[1])
