"""A launcher without processes: what it starts obeys signals as a test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from trivet.endpoints import Endpoints
from trivet.errors import Unavailable
from trivet.launching import EngineHandle, ProcessIdentity, ProcessOrder
from trivet.messages import LaunchOrder
from trivet_supervisor.launchers.order_files import orders_in, remove_run_files, write_order

HELD_S = 60.0  # at most
# Of engines on host b:
LISTENS = Endpoints("tcp://10.0.0.2:1", "tcp://10.0.0.2:2", "tcp://10.0.0.2:3", "key")
SILENCE = "host b has not answered for 9 s (no route)"


@dataclass
class FakeProcess:
    """One started engine; it obeys or ignores signals as the test says."""

    order: ProcessOrder
    identity: ProcessIdentity
    code: int | None = None
    obeys: tuple[str, ...] = ("terminate", "kill")
    signals: list[str] = field(default_factory=list)
    listens: Endpoints | None = None
    silence: str = ""  # of its host
    nobody_answers: str = ""

    def exit_code(self) -> int | None:
        return self.code

    def processes(self) -> list[ProcessIdentity]:
        """With one rank."""
        rank = ProcessIdentity(self.identity.pid + 5000, self.identity.start_time)
        return [] if self.code is not None else [self.identity, rank]

    def endpoints(self) -> Endpoints | None:
        return self.listens

    def unreachable(self) -> str:
        return self.silence

    def cut_off(self) -> str:
        return self.nobody_answers

    def abandon(self) -> None:
        self.signals.append("abandon")

    def terminate(self) -> None:
        self._signal("terminate", -15)

    def kill(self) -> None:
        self._signal("kill", -9)

    def _signal(self, name: str, code: int) -> None:
        self.signals.append(name)
        if name in self.obeys and self.code is None:
            self.code = code


class FakeLauncher:
    """Remembers what it started. `breaks_with`: the next start fails, also one that `starts_all_the_same`."""

    name = "fake"

    def __init__(self) -> None:
        self.processes: list[FakeProcess] = []
        self.breaks_with: str | Exception | None = None
        self.starts_all_the_same = False
        self.silent: set[str] = set()  # hosts
        self.discarded: list[str] = []  # leases
        self.held = threading.Event()  # while it is not set, starts and looks on other hosts wait
        self.held.set()

    def start(self, order: ProcessOrder) -> EngineHandle:
        if order.host:
            self.held.wait(HELD_S)
        if self.breaks_with is not None and not self.starts_all_the_same:
            raise self._broken()
        number = len(self.processes) + 1
        order = replace(order, command=[*order.command, str(write_order(order.launch))])
        identity = ProcessIdentity(1000 + number, float(number), order.host)
        self.processes.append(FakeProcess(order, identity))
        if self.breaks_with is not None:
            raise self._broken()
        return self.processes[-1]

    def _broken(self) -> Exception:
        return (
            Unavailable(self.breaks_with)
            if isinstance(self.breaks_with, str)
            else cast(Exception, self.breaks_with)
        )

    def adopt(
        self, identity: ProcessIdentity, lease: str, log_file: Path | None = None
    ) -> EngineHandle | None:
        if identity.host:
            self.held.wait(HELD_S)
        return next((p for p in self._living(lease) if p.identity == identity), None)

    def find(self, lease: str, log_file: Path | None = None, host: str = "") -> EngineHandle | None:
        if host:
            self.held.wait(HELD_S)
        if host in self.silent:
            raise Unavailable(f"it is not known whether it runs: host {host} does not answer")
        return next(self._living(lease), None)

    def orders(self) -> list[LaunchOrder]:
        return [order for run_dir in self._run_dirs() for order in orders_in(run_dir)]

    def discard(self, instance_id: str, lease: str) -> None:
        self.discarded.append(lease)
        for run_dir in self._run_dirs():
            remove_run_files(run_dir, instance_id)

    def _run_dirs(self) -> set[Path]:
        return {Path(process.order.launch.run_dir) for process in self.processes}

    def _living(self, lease: str) -> Iterator[FakeProcess]:
        return (p for p in self.processes if p.order.lease == lease and p.code is None)
