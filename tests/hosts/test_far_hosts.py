"""One site over several hosts: what it promises of one, with links cut and hosts, agents and heads killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from clusters import RayCluster
from far_hosts import FarHost, wait_for
from head import Head, Stream, engines_of

LONG = 8000  # tokens, of 20 ms each
SLOW = {"options.step_ms": "20", "max_model_len": "8192"}


@pytest.fixture
def null(head: Head, hosts: dict[str, FarHost]) -> Iterator[str]:
    """A model on host a."""
    name = "m"
    head.launch(name, "a/null", **SLOW)
    yield name
    head.stop(name)


def begun(head: Head, name: str) -> Stream:
    stream = Stream(head, name, LONG)
    wait_for("it has begun", lambda: stream.num_chunks > 3 or stream.failure)
    assert not stream.failure
    return stream


def elsewhere(head: Head, name: str, first: str) -> str:
    """Where it is ready then."""
    wait_for("it is elsewhere", lambda: head.where(name) not in ("", first), tell=lambda: head.reasons(name))
    return head.where(name)


def test_an_engine_runs_on_its_host_and_is_reached_over_tcp(
    head: Head, hosts: dict[str, FarHost], null: str
) -> None:
    assert engines_of(hosts) == {"a": 1, "b": 0}
    assert head.ask(null)
    instance = head.instance(null)
    assert instance.device_uids == ("a/null",)
    assert instance.pid in hosts["a"].pids()
    assert not list((head.home / "run").glob("engine-*.sock")), "nothing of it is here"
    assert len(list((hosts["a"].home / "hosts" / "a").glob("engine-*.json"))) == 1
    assert "first_token" in head.run("logs", null), "what it prints is read here"


def test_the_death_of_the_supervisor_touches_no_stream(head: Head, null: str) -> None:
    stream = begun(head, null)
    before, pid = head.supervisor_pid(), head.instance(null).pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_for("another has come", lambda: head.supervisor_pid() not in (None, before))
    wait_for("it is adopted", lambda: any("adopted pid" in reason for reason in head.reasons(null)))
    stream.goes_on()
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)


def test_an_agent_that_dies_ends_no_engine(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], null: str
) -> None:
    stream = begun(head, null)
    pid = head.instance(null).pid
    cluster.end_agent(hosts["a"])
    before = stream.num_chunks
    wait_for("7 s of its stream have come", lambda: stream.num_chunks > before + 350 or stream.failure)
    assert not stream.failure
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)
    cluster.join(hosts["a"])
    head.knows(hosts["a"])
    stream.goes_on()


def test_a_cut_link_moves_its_engine_with_the_reason_and_the_old_one_ends_when_it_is_mended(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost]
) -> None:
    head.launch("cut", **SLOW)
    first = head.where("cut")
    assert first in hosts, head.reasons("cut")
    stream = begun(head, "cut")
    hosts[first].cut()
    try:
        wait_for("its client is told", lambda: stream.failure)
        other = elsewhere(head, "cut", first)
        assert any(f"host {first} has not answered for" in reason for reason in head.reasons("cut"))
        assert head.ask("cut")
        assert engines_of(hosts)[first] == 1, "nobody could end it"
    finally:
        hosts[first].mend()
    wait_for("the abandoned one has ended", lambda: engines_of(hosts)[first] == 0)
    assert head.where("cut") == other
    cluster.join(hosts[first])  # Ray itself takes a node that was away for dead, and ends there
    head.stop("cut")


def test_a_host_that_dies_loses_its_engine_to_another(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost]
) -> None:
    head.launch("dies", **SLOW)
    first = head.where("dies")
    assert first in hosts, head.reasons("dies")
    hosts[first].kill()
    other = elsewhere(head, "dies", first)
    assert any(f"host {first} has not answered for" in reason for reason in head.reasons("dies"))
    cluster.join(hosts[first])
    head.knows(hosts[first])
    assert head.where("dies") == other
    head.stop("dies")
