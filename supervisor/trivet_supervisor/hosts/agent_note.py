"""What the agent of a host says of itself, in a file of its folder, and whom it belongs to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from trivet.errors import Unavailable
from trivet_supervisor.launchers.process_table import boot_id, start_time


class AgentNote(msgspec.Struct, frozen=True):
    """One agent process, and where it is reached."""

    pid: int
    start_time: float
    version: str
    address: str
    port: int
    key: str  # its public key, Z85; it stays when an agent is replaced
    site_key: str  # of the one site that it admits
    boot: str = ""  # of the host, in which pid and start time name a process; empty: not known

    @property
    def is_alive(self) -> bool:
        is_of_this_boot = self.boot in ("", boot_id())
        return is_of_this_boot and start_time(self.pid) == self.start_time


def note_file(folder: Path) -> Path:
    """Of the host whose folder it is."""
    return folder / "agent.json"


def read_note(folder: Path) -> AgentNote | None:
    """Of the agent that runs, or that ran last; None where there was none."""
    try:
        return msgspec.json.decode(note_file(folder).read_bytes(), type=AgentNote)
    except (OSError, msgspec.MsgspecError):
        return None


def write_note(folder: Path, note: AgentNote) -> None:
    """Whole or absent. Raises: OSError."""
    scratch = note_file(folder).with_suffix(".new")
    scratch.write_bytes(msgspec.json.encode(note))
    scratch.replace(note_file(folder))


def give_host_to(folder: Path, site_key: str) -> None:
    """The first site that comes has the host, or the one whose key an operator wrote down before.

    Raises: Unavailable for another one; OSError.
    """
    file = folder / "site.key"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder) as made:
            made.write(site_key)
            made.flush()
            os.link(made.name, file)  # whole or absent: a full disk would give the host to nobody, for good
    except FileExistsError:
        known = file.read_text().strip()
        if known != site_key:
            raise Unavailable(
                f"this host belongs to the site with the key {known[:8]}…, and yours is {site_key[:8]}…: end "
                f"that site's engines and remove {file} to give the host to another, or put back the "
                "engine-keys.json of your home"
            ) from None
