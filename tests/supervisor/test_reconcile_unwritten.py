"""Ends and starts that cannot be written down, and a claim that is another's by now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import SQLAlchemyError

from trivet.messages import Beat, Phase
from trivet_registry.deployments_store import stop_deployment
from trivet_registry.supervision import SupervisionLost
from trivet_supervisor.reconcile import Reconciler

if TYPE_CHECKING:
    from conftest import Site


class DiskFull(SQLAlchemyError):
    """Stands for what SQLAlchemy raises."""


def test_an_end_that_could_not_be_written_is_written_later_with_its_reason(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.make_ready()
    site.process.code = -9

    def fail(*_: object, **__: object) -> None:
        raise DiskFull

    with monkeypatch.context() as patch:
        patch.setattr("trivet_supervisor.endings.move_instance", fail)
        with pytest.raises(DiskFull):
            site.settle()
    assert site.states() == ["ready"]
    site.settle()
    assert "SIGKILL" in site.only().reason


def test_an_end_that_is_written_late_counts_as_one_failure(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full for seconds made the next attempt wait a minute."""
    site.make_ready()
    site.process.code = -9

    def fail(self: object, *_: object) -> None:
        raise DiskFull

    with monkeypatch.context() as patch:
        patch.setattr("sqlalchemy.orm.Session.commit", fail)
        patch.setattr("sqlalchemy.orm.SessionTransaction.commit", fail)
        for _ in range(8):
            with pytest.raises(DiskFull):
                site.settle()
    site.settle()
    assert "attempt 2 in 0.5 s" in site.only().reason


def test_a_pid_that_could_not_be_written_is_written_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.launch()

    def fail(*_: object, **__: object) -> None:
        raise DiskFull

    with monkeypatch.context() as patch:
        patch.setattr("trivet_supervisor.arrivals.update_instance", fail)
        with pytest.raises(DiskFull):
            site.settle()
    assert site.only().pid is None
    assert site.wire.followed == {site.only().id}, "else it would be taken for silent"
    site.settle()
    assert (site.only().pid, len(site.launcher.processes)) == (1001, 1)
    assert not site.reconciler.fleet.has_news()


def test_engines_hear_that_somebody_watches_while_nothing_can_be_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a full disk would end them, `orphan_timeout_s` later."""
    site.make_ready()

    def fail(self: object, *_: object) -> None:
        raise DiskFull

    before = site.wire.num_watches
    with monkeypatch.context() as patch:
        patch.setattr("sqlalchemy.orm.Session.commit", fail)
        patch.setattr("sqlalchemy.orm.SessionTransaction.commit", fail)
        for _ in range(3):
            site.clock.advance(2)
            site.wire.inbox.append(Beat(site.only().id, site.only().lease or "", 1001, 1, Phase.READY))
            with pytest.raises(DiskFull):
                site.settle()
    assert site.wire.num_watches == before + 3


def test_who_has_lost_the_claim_starts_and_ends_nothing(site: Site) -> None:
    site.make_ready()

    def lost() -> None:
        raise SupervisionLost("another supervisor manages this registry")

    site.reconciler = Reconciler(replace(site.means, check_claim=lost), site.places)
    site.launch("second")
    site.change(stop_deployment, "chat")
    with pytest.raises(SupervisionLost):
        site.settle()
    assert (site.states(), len(site.launcher.processes), site.wire.sent) == (["ready"], 1, [])
