"""Has an agent run on this host: starts one where none is, and replaces one of another version."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import trivet
from trivet.errors import Unavailable
from trivet_supervisor.hosts.agent_note import AgentNote, give_host_to, read_note

START_S = 20.0
END_S = 5.0
LOOK_INTERVAL_S = 0.05


def keep_agent(home: Path, name: str, address: str, site_key: str, environ: Mapping[str, str]) -> AgentNote:
    """The one that runs then.

    Args:
        environ: of the agent, and so of its engines; `TRIVET_HOME` in it is of no account.

    Raises: Unavailable where none can, with its own words.
    """
    folder = home / "hosts" / name
    try:
        give_host_to(folder, site_key)
    except OSError as error:
        raise Unavailable(f"{folder} cannot be written: {error.strerror}") from error
    _check_only_name(folder, address)
    note = read_note(folder)
    if note is not None and note.is_alive:
        if (note.version, note.address, note.site_key) == (installed_version(), address, site_key):
            return note
        _end(note)
    return _start(folder, [name, address, site_key], {**environ, "TRIVET_HOME": str(home)})


def _check_only_name(folder: Path, address: str) -> None:
    """Under two names its cards would be listed twice, and taken twice. Raises: Unavailable."""
    for other in folder.parent.iterdir():
        note = None if other == folder else read_note(other)
        if note is not None and note.is_alive and note.address == address:
            raise Unavailable(
                f"this host has joined as {other.name!r} before, whose agent runs (pid {note.pid}): join "
                f"under that name, or end its engines and then that agent to have it be {folder.name!r}"
            )


def installed_version() -> str:
    """As it is on the disk now: this process may be older."""
    file = Path(trivet.__file__)
    found = re.search(r'^__version__ = "([^"]+)"', file.read_text(), re.MULTILINE)
    return found[1] if found else trivet.__version__


def _end(note: AgentNote) -> None:
    """Engines go on. Raises: Unavailable."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if note.is_alive:
            os.kill(note.pid, number)
        deadline_s = time.monotonic() + END_S
        while note.is_alive and time.monotonic() < deadline_s:
            time.sleep(LOOK_INTERVAL_S)
    if note.is_alive:
        raise Unavailable(f"the agent of version {note.version}, pid {note.pid}, does not end")


def _start(folder: Path, arguments: list[str], environ: Mapping[str, str]) -> AgentNote:
    """Through a shell that ends at once: who ends with all its children must not end the agent."""
    command = [sys.executable, "-P", "-m", "trivet_supervisor.hosts.agent_process", *arguments]
    log = folder / "agent.log"
    size = log.stat().st_size if log.exists() else 0
    subprocess.run(
        ["/bin/sh", "-c", '"$@" >>"$0" 2>&1 </dev/null &', str(log), *command],
        env=dict(environ),
        start_new_session=True,
        check=True,
        timeout=START_S,
        cwd=folder,
    )
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        note = read_note(folder)
        if note is not None and note.is_alive:
            return note
        told = _told(log, size)
        if " ERROR " in told or "Traceback" in told:
            break
        time.sleep(LOOK_INTERVAL_S)
    last = _told(log, size).strip().rpartition("\n")[2]
    raise Unavailable(f"its agent does not run: {last or f'not within {START_S:g} s'}; see {log} there")


def _told(log: Path, offset: int) -> str:
    try:
        return log.read_bytes()[offset:].decode(errors="replace")
    except OSError:
        return ""
