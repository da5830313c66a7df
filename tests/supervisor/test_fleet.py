"""The fleet over real processes and sockets; the engine is `fake_engine.py`."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from trivet.config import Settings
from trivet_registry.database import Database
from trivet_registry.deployments_store import create_deployment, stop_deployment
from trivet_registry.instances_store import list_instances
from trivet_registry.references import find_version
from trivet_registry.tables import Instance
from trivet_supervisor.backoff import Backoff
from trivet_supervisor.engine_wire import ZmqWire
from trivet_supervisor.instance_watch import Limits
from trivet_supervisor.launchers.local import LocalLauncher
from trivet_supervisor.launchers.process_table import leased_pids, start_time
from trivet_supervisor.means import Means
from trivet_supervisor.reconcile import Reconciler

if TYPE_CHECKING:
    from conftest import FakePlaces, Site

LIMITS = Limits(silence_s=2.0, answer_s=3.0, stop_s=60.0)  # one that obeys may be slow
IMPATIENT = Limits(stop_s=0.3, terminate_s=0.3, drain_grace_s=0.3)
ENGINE = Path(__file__).with_name("fake_engine.py")


class Supervised:
    """One deployment and a reconciler that this test turns."""

    def __init__(
        self, database: Database, settings: Settings, places: FakePlaces, behaviour: str, limits: Limits
    ) -> None:
        self.database = database
        self.limits = limits
        self.settings = settings
        self.places = places
        self.environment = {"FAKE_ENGINE": behaviour}
        self.wire: ZmqWire | None = None
        self.leases: set[str] = set()
        self.earlier: list[Reconciler] = []
        self.start_supervisor()
        with database.session() as session:
            create_deployment(session, name="chat", version=find_version(session, "tiny"))

    def start_supervisor(self) -> None:
        if self.wire is not None:
            self.wire.close()
            self.earlier.append(self.reconciler)
        self.wire = ZmqWire(zmq.Context.instance())
        means = Means(
            self.database,
            self.settings,
            LocalLauncher(self.settings.paths.run),
            self.wire,
            time.monotonic,
            self.limits,
            Backoff(first_s=0.05),
            self.environment,
            lambda settings, backend: [sys.executable, str(ENGINE)],
        )
        self.reconciler = Reconciler(means, self.places)

    def until(self, is_true: Callable[[Instance], object], what: str = "") -> Instance:
        """Turn until it is true of the one instance."""
        deadline_s = time.monotonic() + 60
        while True:
            self.reconciler.tick()
            with self.database.reading() as session:
                instances = list_instances(session)
            self.leases |= {i.lease for i in instances if i.lease}
            if instances and is_true(instances[-1]):
                return instances[-1]
            seen = [(i.state, i.reason) for i in instances]
            assert time.monotonic() < deadline_s, f"{what}: {seen}"
            assert self.wire is not None
            self.wire.socket.poll(20)

    def until_state(self, state: str) -> Instance:
        return self.until(lambda instance: instance.state == state, state)

    def stop(self, drain_timeout_s: float = 5) -> Instance:
        with self.database.session() as session:
            stop_deployment(session, "chat", drain_timeout_s)
        return self.until_state("stopped")

    def clean_up(self) -> None:
        for lease in self.leases:
            for pid in leased_pids(lease):
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)
        self.until(lambda i: not any(list(leased_pids(lease)) for lease in self.leases))
        for reconciler in self.earlier:  # whose children only this process can reap
            reconciler.fleet.has_news()
        assert self.wire is not None
        self.wire.close()


@pytest.fixture
def run(site: Site) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes

        def start(behaviour: str, limits: Limits = LIMITS) -> Supervised:
            settings = Settings(home=home)
            settings.paths.create()
            made.append(Supervised(site.database, settings, site.places, behaviour, limits))
            return made[-1]

        yield start
        for supervised in made:
            with supervised.database.session() as session:
                stop_deployment(session, "chat", 0)
            supervised.until(lambda i: i.state in ("stopped", "failed"))
            supervised.clean_up()


def test_an_engine_comes_up_and_goes_when_told(run: Callable[[str], Supervised]) -> None:
    supervised = run("good")
    ready = supervised.until_state("ready")
    assert ready.pid is not None
    assert ready.process_start_time == start_time(ready.pid)
    stopped = supervised.stop()
    assert stopped.exit_code == 0
    assert not list(leased_pids(ready.lease or ""))
    assert not list((supervised.settings.paths.run).iterdir())


def test_an_engines_own_words_and_log_explain_its_failure(run: Callable[[str], Supervised]) -> None:
    failed = run("fails").until_state("failed")
    assert "exit code 4: tensor x is missing" in failed.reason
    assert Path(failed.log_file or "").read_text() == "fake engine fails\n"
    assert failed.attempt == 3


def test_a_crash_while_loading_is_told_with_its_signal(run: Callable[[str], Supervised]) -> None:
    failed = run("crashes").until_state("failed")
    assert "SIGKILL" in failed.reason
    assert failed.exit_code == -9


def test_an_engine_that_obeys_nothing_is_killed(run: Callable[..., Supervised]) -> None:
    supervised = run("deaf", IMPATIENT)
    supervised.until_state("ready")
    assert supervised.stop(drain_timeout_s=0).exit_code == -9


def test_an_engine_that_answers_when_asked_is_kept(run: Callable[[str], Supervised]) -> None:
    supervised = run("shy")
    ready = supervised.until_state("ready")
    end_s = time.monotonic() + 1.3 * (LIMITS.silence_s + LIMITS.answer_s)
    still = supervised.until(lambda i: time.monotonic() > end_s)
    assert (still.state, still.pid) == ("ready", ready.pid)


def test_a_stopped_process_is_lost_killed_and_replaced(run: Callable[[str], Supervised]) -> None:
    supervised = run("good")
    ready = supervised.until_state("ready")
    assert ready.pid is not None
    os.kill(ready.pid, signal.SIGSTOP)
    supervised.until_state("lost")
    again = supervised.until_state("ready")
    assert again.pid != ready.pid
    assert again.attempt == 2
    assert start_time(ready.pid) is None


def test_a_new_supervisor_adopts_the_process(run: Callable[[str], Supervised]) -> None:
    supervised = run("good")
    ready = supervised.until_state("ready")
    supervised.start_supervisor()
    seen_again = supervised.until(lambda i: i.as_of > ready.as_of)
    assert (seen_again.state, seen_again.pid) == ("ready", ready.pid)
    os.kill(ready.pid or 0, signal.SIGKILL)
    assert supervised.until(lambda i: i.pid is not None and i.pid != ready.pid).attempt == 2


def test_children_of_a_dead_engine_are_gone_before_the_next_attempt(run: Callable[[str], Supervised]) -> None:
    supervised = run("good")
    ready = supervised.until_state("ready")
    assert ready.pid is not None
    os.kill(ready.pid, signal.SIGKILL)
    supervised.until(lambda i: i.attempt == 2)
    assert not list(leased_pids(ready.lease or ""))
