"""One engine on another host: what the last look saw of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trivet.endpoints import Endpoints
from trivet.launching import ProcessIdentity
from trivet_supervisor.hosts.host_link import HostLink


class RemoteHandle:
    """`launching.EngineHandle`; nothing here waits."""

    def __init__(self, identity: ProcessIdentity, lease: str, link: HostLink, log_file: Path | None) -> None:
        self.identity = identity
        self._lease = lease
        self._link = link
        self._tracked = link.track(lease, log_file)

    def exit_code(self) -> int | None:
        """Once its whole log is here."""
        seen = self._tracked.seen
        return seen.exit_code if seen is not None and self._tracked.has_ended else None

    def processes(self) -> Sequence[ProcessIdentity]:
        seen = self._tracked.seen
        found = [] if seen is None else seen.processes
        return [ProcessIdentity(pid, started, self.identity.host) for pid, started in found]

    def endpoints(self) -> Endpoints | None:
        return self._tracked.seen.endpoints if self._tracked.seen is not None else None

    def unreachable(self) -> str:
        """Also where its host answers and cannot tell whether it lives."""
        if silence := self._link.unreachable():
            return silence
        untold = "" if self._tracked.seen is None else self._tracked.seen.untold
        return untold and f"host {self.identity.host} cannot tell whether it lives: {untold}"

    def cut_off(self) -> str:
        return self._link.cut_off()

    def terminate(self) -> None:
        self._link.signal(self._lease, is_kill=False)

    def kill(self) -> None:
        self._link.signal(self._lease, is_kill=True)

    def abandon(self) -> None:
        self._link.untrack(self._lease)
