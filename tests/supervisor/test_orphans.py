from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from trivet_registry.events_store import list_events
from trivet_registry.tables import Instance
from trivet_supervisor import orphans
from trivet_supervisor.launchers.order_files import order_file
from trivet_supervisor.orphans import OrphanWatch, end_orphans

if TYPE_CHECKING:
    from conftest import Site

    from trivet.messages import LaunchOrder


@pytest.mark.parametrize("obeys", [("terminate", "kill"), ("kill",)])
def test_an_engine_that_a_restored_registry_does_not_know_is_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch, obeys: tuple[str, ...]
) -> None:
    monkeypatch.setattr(orphans, "SIGTERM_S", 0.2)
    site.make_ready(replicas=2)
    orphan, other = site.launcher.processes
    orphan.obeys = obeys
    with site.database.session() as session:
        lost = next(i for i in site.instances() if i.lease == orphan.order.lease)
        session.delete(session.get(Instance, lost.id))
    assert end_orphans(site.means) == 1
    assert orphan.code is not None
    assert other.signals == []
    with site.database.reading() as session:
        assert any("pid 1001, an engine of chat" in event.reason for event in list_events(session))
    assert end_orphans(site.means) == 0


def test_what_the_registry_knows_is_left_alone(site: Site) -> None:
    site.make_ready()
    assert end_orphans(site.means) == 0
    assert site.process.signals == []


def test_an_order_that_cannot_be_read_ends_nothing_and_hides_no_other(site: Site) -> None:
    site.make_ready(replicas=2)
    unread, orphan = site.launcher.processes
    for instance in site.instances():
        if instance.lease == unread.order.lease:
            order_file(site.settings.paths.run, instance.id).write_text("{")
        with site.database.session() as session:
            session.delete(session.get(Instance, instance.id))
    assert end_orphans(site.means) == 1
    assert (unread.signals, orphan.signals) == ([], ["terminate"])


def test_an_orphan_ends_although_that_cannot_be_written_down(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make_ready()
    with site.database.session() as session:
        session.delete(session.get(Instance, site.only().id))

    def fail(*_: object, **__: object) -> None:
        raise OperationalError("COMMIT", None, sqlite3.OperationalError("database or disk is full"))

    monkeypatch.setattr(orphans, "record_event", fail)
    with pytest.raises(OperationalError):
        end_orphans(site.means)
    assert site.process.code is not None


def test_an_orphan_that_nothing_ends_is_told_and_found_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "SIGTERM_S", 0.1)
    monkeypatch.setattr(orphans, "SIGKILL_S", 0.1)
    site.make_ready()
    site.process.obeys = ()
    with site.database.session() as session:
        session.delete(session.get(Instance, site.only().id))
    assert end_orphans(site.means) == 1
    with site.database.reading() as session:
        told = list_events(session)[-1].reason
    assert told.startswith("SIGKILL does not end pid 1001 (a device may hang: see dmesg), an engine of chat")
    site.process.obeys = ("kill",)
    assert end_orphans(site.means) == 1
    assert site.process.code is not None
    assert end_orphans(site.means) == 0


def test_orphans_are_looked_for_when_a_host_comes_back_and_now_and_then_and_nobody_waits(site: Site) -> None:
    looks: list[float] = []
    may_look = threading.Event()
    silence = {"b": "host b has not answered for 9 s"}

    def orders() -> list[LaunchOrder]:
        looks.append(site.clock())
        may_look.wait(60)
        return []

    launcher = SimpleNamespace(orders=orders, hosts=lambda: dict(silence), devices=list, usage=dict)
    watch = OrphanWatch(replace(site.means, launcher=cast("Any", launcher)))

    def until_looked(number: int) -> None:
        deadline_s = time.monotonic() + 60
        while len(looks) != number or (watch._look is not None and watch._look.is_under_way()):
            assert time.monotonic() < deadline_s, looks
            time.sleep(0.01)
            watch.turn()

    watch.turn()
    site.clock.advance(100)
    watch.turn()  # the first has not answered
    may_look.set()
    until_looked(2)
    site.clock.advance(1)
    watch.turn()
    until_looked(2)
    silence["b"] = ""
    watch.turn()
    until_looked(3)
    site.clock.advance(31)
    watch.turn()
    until_looked(4)


def test_of_a_launcher_without_hosts_nothing_is_looked_for_in_turns(site: Site) -> None:
    watch = OrphanWatch(site.means)
    watch.turn()
    assert watch._look is None
