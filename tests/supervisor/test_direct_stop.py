from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import OperationalError

from trivet.commands import stop
from trivet.config import Settings
from trivet.contract import DeviceInfo
from trivet.errors import Unavailable
from trivet.optional_contract import DeviceUsage, DeviceUser
from trivet.plugins import PluginHost
from trivet_registry.database import Database
from trivet_registry.deployments_store import get_deployment
from trivet_registry.supervision import claim_supervision
from trivet_registry.tables import Instance
from trivet_supervisor import device_refresh, direct_stop, parent
from trivet_supervisor.commands import commands
from trivet_supervisor.direct_stop import KILL_MARGIN_S, EndedUnwritten, end_engines, want_nothing
from trivet_supervisor.instance_watch import Limits

if TYPE_CHECKING:
    from conftest import Site


@pytest.fixture
def settings(database: Database, site: Site) -> Iterator[Settings]:
    """The site's registry and run directory under another name."""
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        url = database.engine.url.render_as_string(hide_password=False)
        made = Settings(home=home, database_url=url)
        made.paths.create()
        made.paths.run.rmdir()
        made.paths.run.symlink_to(site.settings.paths.run)
        yield made


def test_engines_that_obey_are_ended(site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    site.make_ready(replicas=2)
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    for process in site.launcher.processes:
        process.code = 0
    assert end_engines(settings, 0.0) == 2
    assert site.states() == ["stopped"] * 2


def test_a_second_less_patient_stop_of_all_reaches_what_drains_already(site: Site) -> None:
    site.make_ready()
    assert want_nothing(site.database, 100.0) == ["chat"]
    site.settle()
    assert want_nothing(site.database, 0.0) == []
    site.wait(6)
    assert site.states() == ["stopping"]


def test_an_engine_that_survives_sigkill_is_named_and_not_waited_for(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make_ready()
    site.process.obeys = ()
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    monkeypatch.setattr(direct_stop, "KILL_MARGIN_S", 3.0)  # a busy machine reaches "stopping" in it
    with pytest.raises(
        Unavailable, match=r"1 engine left, not even SIGKILL ends: pid 1001 \(chat, stopping\)"
    ):
        end_engines(settings, 0.0)


def test_engines_that_the_registry_does_not_know_are_ended_and_counted(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry was deleted, or restored from a backup."""
    site.make_ready(replicas=2)
    known, orphan = site.launcher.processes
    known.code = 0
    with site.database.session() as session:
        (row,) = [i for i in site.instances() if i.lease == orphan.order.lease]
        session.delete(session.get(Instance, row.id))
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    url = site.database.engine.url.render_as_string(hide_password=False)
    assert end_engines(Settings(home=site.settings.home, database_url=url), 0.0) == 2
    assert orphan.code is not None


def test_stopped_is_said_when_the_device_has_its_memory_back(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch, device: DeviceInfo
) -> None:
    seen: list[str] = []  # the state of the instance, each time the tool is asked

    class Telling:
        name = "fake"

        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            return [device]

        def usage(self) -> dict[str, DeviceUsage]:
            seen.append(site.only().state)
            users = (DeviceUser(1001),) if len(seen) < 3 else ()
            return {"host": DeviceUsage(1, 1, users=users)}

    site.make_ready()
    codes = iter([None, None])
    monkeypatch.setattr(site.process, "exit_code", lambda: next(codes, 0))
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    monkeypatch.setattr(PluginHost, "backends", {"fake": Telling()})
    monkeypatch.setattr(device_refresh, "ASKED_INTERVAL_S", 0.01)
    assert end_engines(settings, 0.0) == 1
    assert seen[1:] == ["stopping", "stopping"], "after the engine's end"
    assert site.states() == ["stopped"]


def test_whoever_waits_for_an_end_waits_for_as_long_as_one_may_take() -> None:
    limits = Limits()
    assert limits.ending_s > limits.drain_grace_s + limits.stop_s + limits.terminate_s + limits.memory_back_s
    assert limits.ending_s < KILL_MARGIN_S < stop.KILL_MARGIN_S
    assert parent.KILL_MARGIN_S is KILL_MARGIN_S


@pytest.mark.parametrize("obeys", [("terminate", "kill"), ("kill",)])
def test_engines_end_although_the_registry_cannot_be_written(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch, obeys: tuple[str, ...]
) -> None:
    """Ctrl-C while the disk was full ended in a traceback and left the engines."""
    site.make_ready(replicas=2)
    for process in site.launcher.processes:
        process.obeys = obeys
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    monkeypatch.setattr(direct_stop, "SIGTERM_S", 0.2)

    def fail(*_: object, **__: object) -> None:
        raise OperationalError("COMMIT", None, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr("trivet_supervisor.fleet.update_instance", fail)
    monkeypatch.setattr("trivet_supervisor.fleet.move_instance", fail)
    with pytest.raises(EndedUnwritten, match=r"disk is full.*its engines have ended"):
        end_engines(settings, 0.0)
    assert [process.code is None for process in site.launcher.processes] == [False, False]


@pytest.mark.usefixtures("sqlite_only")
def test_engines_end_although_the_registry_cannot_be_opened(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is damaged, or somebody holds it locked: the orders in the run directory name every engine."""
    site.make_ready(replicas=2)
    site.launcher.processes[0].obeys = ("kill",)
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    monkeypatch.setattr(direct_stop, "SIGTERM_S", 0.2)
    damaged = Path(site.settings.home) / "damaged.db"
    damaged.write_text("this is not SQLite, " * 100)
    settings = Settings(home=site.settings.home, database_url=f"sqlite:///{damaged}")
    with pytest.raises(EndedUnwritten, match=r"damaged.db cannot be opened: .*its engines have ended"):
        end_engines(settings, 0.0)
    assert [process.code is None for process in site.launcher.processes] == [False, False]


def test_stop_all_ends_engines_although_it_cannot_be_written_down(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make_ready()
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    monkeypatch.setenv("TRIVET_HOME", settings.home)
    monkeypatch.setenv("TRIVET_DATABASE_URL", settings.resolved_database_url)
    (stop_all,) = [command for command in commands() if command.name == "stop-all"]

    def fail(*_: object, **__: object) -> None:
        raise OperationalError("COMMIT", None, sqlite3.OperationalError("database or disk is full"))

    for place in ("direct_stop.stop_deployment", "fleet.update_instance", "fleet.move_instance"):
        monkeypatch.setattr(f"trivet_supervisor.{place}", fail)
    with pytest.raises(EndedUnwritten, match="disk is full"):
        stop_all.run(argparse.Namespace(now=True, timeout=None))
    assert site.process.code is not None


def test_a_supervisor_that_is_too_busy_to_answer_is_waited_for(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.launch()  # no instance yet, so nothing is left to end
    monkeypatch.setenv("TRIVET_HOME", settings.home)
    monkeypatch.setenv("TRIVET_DATABASE_URL", settings.resolved_database_url)
    (stop_all,) = [command for command in commands() if command.name == "stop-all"]
    with claim_supervision(site.database, "a supervisor"):
        assert stop_all.run(argparse.Namespace(now=True, timeout=None)) == 0
    out, err = capsys.readouterr()
    assert (out, "busy" in err) == ("stopped: chat\n", True)
    with site.database.reading() as session:
        assert get_deployment(session, "chat").desired == "stopped"
