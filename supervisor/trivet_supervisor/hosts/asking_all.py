"""One question to many hosts at once, with one deadline for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from trivet.errors import Unavailable
from trivet_supervisor.hosts.agent_calls import Answer, Call, HostSilent
from trivet_supervisor.hosts.host_link import HostLink

GRACE_S = 1.0  # past the deadline of a call, which may have to be given up first


class _Asked:
    """One host's answer, on a thread of its own: a way to it that hangs holds up nobody else."""

    def __init__(self, link: HostLink, call: Call, timeout_s: float) -> None:
        self.answer: Answer | Unavailable = HostSilent(f"host {link.host} gave no answer in time")
        self._link, self._call, self._timeout_s = link, call, timeout_s
        self.thread = threading.Thread(target=self._run, name=f"ask-{link.host}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.answer = self._link.call(self._call, self._timeout_s)
        except Unavailable as error:
            self.answer = error
        except Exception as error:  # a border: what an installed way to hosts may raise
            self.answer = Unavailable(f"host {self._link.host}: {type(error).__name__}: {error}")


class AskingAll:
    """A host with which such a question still hangs is not asked again. Thread-safe."""

    def __init__(self) -> None:
        self._hanging: dict[tuple[str, str], _Asked] = {}
        self._lock = threading.Lock()

    def ask(
        self, links: Mapping[str, HostLink], call: Call, timeout_s: float
    ) -> dict[str, Answer | Unavailable]:
        """By host, within `timeout_s` and a second. Never raises."""
        asked = {}
        for host, link in links.items():
            key = (host, repr(call))
            with self._lock:
                before = self._hanging.get(key)
                if before is None or not before.thread.is_alive():
                    before = self._hanging[key] = _Asked(link, call, timeout_s)
                asked[host] = before
        deadline_s = time.monotonic() + timeout_s + GRACE_S
        for one in asked.values():
            one.thread.join(max(0.0, deadline_s - time.monotonic()))
        return {host: one.answer for host, one in asked.items()}
