"""A site is stopped while a host does not answer: that is said, and no exit code of 0 hides it."""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_launcher import SILENCE
from sqlalchemy.exc import OperationalError

from trivet.config import Settings
from trivet.errors import Unavailable
from trivet.plugins import PluginHost
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.fences_store import list_fences
from trivet_registry.supervision import claim_supervision
from trivet_supervisor import direct_stop
from trivet_supervisor.commands import commands
from trivet_supervisor.direct_stop import EndedUnwritten, end_by_orders, end_engines

if TYPE_CHECKING:
    from conftest import Site


@pytest.fixture
def settings(site: Site) -> Iterator[Settings]:
    """The site's registry and run directory under another name."""
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        url = site.database.engine.url.render_as_string(hide_password=False)
        made = Settings(home=home, database_url=url)
        made.paths.create()
        made.paths.run.rmdir()
        made.paths.run.symlink_to(site.settings.paths.run)
        yield made


@pytest.fixture
def cut(far: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """One engine on host b, given up by a supervisor that is gone."""
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: far.launcher)
    far.process.silence, far.process.obeys = SILENCE, ()
    far.launcher.silent.add("b")
    far.change(stop_deployment, "chat", 0.0)
    far.wait(20)
    assert far.states() == ["stopped"]
    return far


def test_a_shutdown_does_not_wait_for_a_silent_host_and_waits_for_one_that_answers(cut: Site) -> None:
    cut.reconciler.shut_down(0.0)
    assert not cut.reconciler.waits_for_engines(), "more time would not help"
    cut.process.silence = ""
    cut.launcher.silent.clear()
    cut.wait(1.5)
    assert cut.process.signals[-1] == "kill"
    assert cut.reconciler.waits_for_engines()
    cut.process.code = -9
    cut.wait(1)
    assert not cut.reconciler.waits_for_engines()


def test_a_shutdown_does_not_wait_for_ever_for_what_sigkill_does_not_end(cut: Site) -> None:
    cut.reconciler.shut_down(0.0)
    cut.process.silence = ""
    cut.launcher.silent.clear()
    cut.wait(20)
    assert not cut.reconciler.waits_for_engines()


def test_stopping_without_a_supervisor_names_the_host_that_did_not_confirm(
    cut: Site, settings: Settings
) -> None:
    with pytest.raises(
        Unavailable, match=r"host b has not said that pid 1001 \(chat, given up since .* ended"
    ):
        end_engines(settings, 0.0)
    cut.process.silence, cut.process.obeys = "", ("kill",)
    cut.launcher.silent.clear()
    assert end_engines(settings, 0.0) == 0
    assert cut.process.signals[-1] == "kill"
    with cut.database.reading() as session:
        assert not list_fences(session)


def test_stop_all_beside_a_supervisor_says_it_too(
    cut: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_stop, "CONFIRM_S", 0.1)
    monkeypatch.setenv("TRIVET_HOME", settings.home)
    monkeypatch.setenv("TRIVET_DATABASE_URL", settings.resolved_database_url)
    (stop_all,) = [command for command in commands() if command.name == "stop-all"]
    with (
        claim_supervision(cut.database, "a supervisor"),
        pytest.raises(Unavailable, match="host b has not said that pid 1001"),
    ):
        stop_all.run(argparse.Namespace(now=True, timeout=None))


def test_where_nothing_can_be_written_a_silent_host_is_named_and_its_engines_are_not_called_ended(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: site.launcher)
    site.make_ready()  # here
    site.places.host = "b"
    site.launch("far")
    site.settle()
    here, far = site.launcher.processes
    far.silence, far.obeys = SILENCE, ()
    site.launcher.silent.add("b")

    def fail(*_: object, **__: object) -> None:
        raise OperationalError("COMMIT", None, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr("trivet_supervisor.fleet.move_instance", fail)
    monkeypatch.setattr("trivet_supervisor.arrivals.update_instance", fail)
    with pytest.raises(Unavailable, match=r"not known to have ended.*host b does not answer") as raised:
        end_engines(settings, 0.0)
    assert not isinstance(raised.value, EndedUnwritten)
    assert here.code is not None


@pytest.mark.usefixtures("sqlite_only")
def test_hosts_that_could_not_tell_their_orders_are_named(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = site.launcher
    monkeypatch.setattr(PluginHost, "launcher", lambda self, name: launcher)
    for name, answer in (("hosts", {"b": SILENCE, "c": ""}), ("devices", []), ("usage", {})):
        monkeypatch.setattr(launcher, name, lambda *_, answer=answer: answer, raising=False)
    told = end_by_orders(Settings(home=str(tmp_path)), "it is damaged")
    assert not isinstance(told, EndedUnwritten)
    assert str(told).startswith("it is damaged; what runs where nobody answers is not known to have ended")
    assert "no route" in str(told)
    assert "host c" not in str(told)
