"""A shutdown while the registry cannot be written ends every engine all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trivet.launching import CALL_LIMIT_S
from trivet.messages import Drain, Stop
from trivet_supervisor import arrivals

if TYPE_CHECKING:
    from conftest import Site


def shut_down(site: Site, seconds: int) -> bool:
    """Turns fail, and this is what happens instead. Whether every engine has ended."""
    for _ in range(seconds):
        site.reconciler.end_unwritten()
        if site.reconciler.has_ended_unwritten:
            return True
        site.clock.advance(1)
    return False


def test_engines_are_drained_first_and_end_by_themselves(site: Site) -> None:
    site.make_ready(replicas=2)
    site.reconciler.shut_down(10)
    assert not shut_down(site, 5)
    assert [type(request) for _, request in site.wire.sent] == [Drain] * 10
    assert [process.signals for process in site.launcher.processes] == [[], []]
    for process in site.launcher.processes:
        process.code = 0
    assert shut_down(site, 1)


@pytest.mark.parametrize(("obeys", "signal"), [(("terminate", "kill"), "terminate"), (("kill",), "kill")])
def test_one_that_does_not_obey_is_ended_by_signal(site: Site, obeys: tuple[str, ...], signal: str) -> None:
    site.make_ready()
    site.process.obeys = obeys
    site.reconciler.shut_down(0)
    assert shut_down(site, 20)
    assert {type(request) for _, request in site.wire.sent} == {Stop}
    assert site.process.signals[-1] == signal


def test_nothing_ends_that_nobody_shuts_down(site: Site) -> None:
    site.make_ready()
    assert not shut_down(site, 100)
    assert (site.wire.sent, site.process.signals) == ([], [])


def test_what_was_being_started_or_looked_for_is_ended_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "FAR_PATIENCE_S", 0.0)
    site.places.host = "b"
    site.launch()
    site.settle()
    site.launcher.held.clear()
    site.start_supervisor()
    site.settle()  # the one is looked for
    site.launch("other")
    site.settle()
    site.reconciler.shut_down(0)
    assert not shut_down(site, 5), "nobody knows whether it runs"
    site.launcher.held.set()
    coming = site.reconciler.fleet._arrivals
    for asked in [*coming._starts.values(), *coming._finds.values()]:
        asked.call.is_under_way(60)
    assert shut_down(site, 20)
    assert [process.code for process in site.launcher.processes] == [-15, -15]


def test_a_launcher_that_never_answers_is_not_waited_for_without_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "FAR_PATIENCE_S", 0.0)
    site.places.host = "b"
    site.launcher.held.clear()
    site.launch()
    site.settle()
    site.reconciler.shut_down(0)
    assert not shut_down(site, 5)
    assert shut_down(site, int(CALL_LIMIT_S))
    site.launcher.held.set()
