"""What an agent has to know of leases over its own death: files beside the orders of its host.

`killed/LEASE` is there for good once an engine was told to die: a start that was held up on its way comes too
late for it. `started/LEASE.json` says which process was started, on which machine and in which of its boots
and containers; by that alone an agent can say of an engine that it does not see that it is gone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from trivet.launching import ProcessIdentity
from trivet_supervisor.launchers.process_table import boot_id, start_time

logger = logging.getLogger(__name__)

KEPT_S = 7 * 86400.0  # no message is held up so long


class _Place(msgspec.Struct, frozen=True):
    """Where processes are seen: pids mean the same in one boot, and in one pid namespace of it."""

    machine: str  # empty: it has no id
    boot: str
    namespace: str


class _Started(msgspec.Struct, frozen=True):
    pid: int
    start_time: float
    place: _Place


class LeaseRecords:
    """Of one host; not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._killed_folder = folder / "killed"
        self._started_folder = folder / "started"
        self._place = _this_place()
        self._killed = {file.name for file in self._killed_folder.glob("*")}
        for file in self._killed_folder.glob("*"):
            if time.time() - file.stat().st_mtime > KEPT_S:
                file.unlink(missing_ok=True)

    def is_killed(self, lease: str) -> bool:
        return lease in self._killed

    def kill(self, leases: Iterable[str]) -> None:
        """They are never started from now on."""
        for lease in set(leases) - self._killed:
            self._killed.add(lease)
            try:
                self._killed_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (self._killed_folder / lease).touch(mode=0o600)
            except OSError as error:  # this agent knows it all the same
                logger.warning("lease=%s its end cannot be written down: %s", lease[:8], error)

    def started(self, lease: str, identity: ProcessIdentity) -> None:
        """Raises: OSError."""
        self._started_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = _Started(identity.pid, identity.start_time, self._place)
        scratch = self._file(lease).with_suffix(".new")
        scratch.write_bytes(msgspec.json.encode(record))
        scratch.replace(self._file(lease))

    def forget(self, lease: str) -> None:
        """What was started is gone. That it was killed stays."""
        self._file(lease).unlink(missing_ok=True)

    def why_untold(self, lease: str) -> str:
        """Of an engine that this agent does not see: empty where it is gone; else why that is not certain."""
        try:
            record = msgspec.json.decode(self._file(lease).read_bytes(), type=_Started)
        except FileNotFoundError:
            return ""  # nothing was started
        except (OSError, msgspec.MsgspecError) as error:
            return f"what is known of its process cannot be read: {error}; see {self._file(lease)}"
        here, there = self._place, record.place
        if here.machine and there.machine and here.machine != there.machine:
            return (
                f"its process {record.pid} was started on another machine under this name; if that has "
                f"ended, remove {self._file(lease)}"
            )
        if here.boot != there.boot:
            return ""
        if here.namespace != there.namespace:
            return (
                f"its process {record.pid} was started in another container of this machine; if that has "
                f"ended, remove {self._file(lease)}"
            )
        if start_time(record.pid) == record.start_time:
            return f"its process {record.pid} runs, and the account of this agent may not look at it"
        return ""

    def _file(self, lease: str) -> Path:
        return self._started_folder / f"{lease}.json"


def _this_place() -> _Place:
    return _Place(_read("/etc/machine-id"), boot_id(), os.readlink("/proc/self/ns/pid"))


def _read(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except OSError:
        return ""
