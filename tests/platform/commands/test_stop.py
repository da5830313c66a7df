"""`trivet stop` and `drain`."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivet.commands.launch.POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("trivet.commands.stop.POLL_INTERVAL_S", 0.01)


def _drain_timeouts(site) -> list[str]:
    return [path.partition("?")[2] for method, path, _ in site.requests if method == "DELETE"]


@pytest.mark.parametrize(
    ("arguments", "query"),
    [
        (["stop", "smollm2"], ""),
        (["stop", "smollm2", "--now"], "drain_timeout_s=0.0"),
        (["stop", "smollm2", "--timeout", "2.5"], "drain_timeout_s=2.5"),
        (["drain", "smollm2"], "drain_timeout_s=600.0"),
    ],
)
def test_it_returns_when_the_last_instance_has_stopped(site, trivet, arguments, query) -> None:
    trivet("launch", "smollm2")
    done = trivet(*arguments)
    assert (done.code, done.out) == (0, "smollm2 is stopped\n")
    assert "smollm2: 1 request to finish" in done.err  # seen while it drained
    assert site.deployments["smollm2"]["instances"][0]["states"] == ["stopped"]
    assert _drain_timeouts(site) == [query]


def test_no_wait_returns_at_once(site, trivet) -> None:
    trivet("launch", "smollm2")
    assert trivet("stop", "smollm2", "--no-wait").out == "smollm2 is stopping\n"


def test_what_does_not_end_is_an_error_that_names_what_is_left(site, trivet, monkeypatch) -> None:
    monkeypatch.setattr("trivet.commands.stop.KILL_MARGIN_S", 0.0)
    site.stop_states = ["draining"]
    trivet("launch", "smollm2")
    done = trivet("stop", "smollm2", "--timeout", "0.1")
    assert done.code == 1
    assert "smollm2-0 draining" in done.err
    site.stop_states = ["lost"]  # its host is silent: no wait for ever without --timeout either
    done = trivet("stop", "smollm2")
    assert done.code == 1
    assert "smollm2-0 lost" in done.err


def test_a_stop_that_someone_undoes_is_told_so(site, trivet) -> None:
    trivet("launch", "smollm2")
    site.stop_states, site.relaunch_after = ["draining"], 3
    done = trivet("stop", "smollm2")
    assert done.code == 1
    assert "smollm2 was launched again while its end was waited for" in done.err


@pytest.mark.parametrize("arguments", [["stop", "smollm2"], ["scale", "smollm2", "2"]])
def test_who_waits_is_told_once_that_no_supervisor_acts(site, trivet, monkeypatch, arguments) -> None:
    trivet("launch", "smollm2")
    monkeypatch.setattr("trivet.commands.staleness.LOOK_INTERVAL_S", 0.0)
    site.supervisor_up = False
    done = trivet(*arguments)
    assert done.code == 0
    assert done.err.count("as of 20:00:00 UTC, and nothing is started or ended") == 1


def test_a_site_may_drain_longer_than_this_machine_would(site, trivet, monkeypatch) -> None:
    monkeypatch.setattr("trivet.commands.stop.KILL_MARGIN_S", 0.0)
    monkeypatch.setenv("TRIVET_DRAIN_TIMEOUT_S", "0")  # of here, not of the server
    site.stop_states = [*["draining"] * 20, "stopped"]
    trivet("launch", "smollm2")
    done = trivet("stop", "smollm2")
    assert (done.code, done.out) == (0, "smollm2 is stopped\n")


def test_all_is_the_supervisor_packages_command(site, trivet) -> None:
    done = trivet("stop", "--all", "--now")
    assert (done.code, done.out) == (0, "stopped without a supervisor: 0 engines\n")
    assert site.requests == []


@pytest.mark.parametrize("arguments", [[], ["smollm2", "--all"]])
def test_either_a_name_or_all(site, trivet, arguments) -> None:
    done = trivet("stop", *arguments)
    assert (done.code, site.requests) == (2, [])


def test_an_unknown_name_is_refused(site, trivet) -> None:
    done = trivet("stop", "nope")
    assert (done.code, done.err) == (1, "trivet: deployment 'nope' does not exist\n")
