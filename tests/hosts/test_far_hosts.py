"""One site over several hosts: what it promises of one, with links cut and hosts, agents and heads killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from clusters import RayCluster
from far_hosts import FarHost, wait_for
from head import Head, Stream, engines_of

from trivet.demo_model import find_demo_model

LONG = 8000  # tokens, of 50 ms each: longer than a test may last
SLOW = {"options.step_ms": "50", "max_model_len": "8192"}


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


def is_adopted(head: Head, name: str, pid: int | None) -> None:
    told = f"adopted pid {pid} "
    wait_for("it is adopted", lambda: any(told in reason for reason in head.reasons(name)))


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
    is_adopted(head, null, pid)
    stream.goes_on()
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)


def test_a_head_that_dies_whole_finds_its_engines_again(
    head: Head, hosts: dict[str, FarHost], null: str
) -> None:
    pid = head.instance(null).pid
    head.kill()
    head.serve()
    is_adopted(head, null, pid)
    assert head.ask(null)
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)
    assert engines_of(hosts) == {"a": 1, "b": 0}


def test_a_host_of_another_version_keeps_its_engines_and_starts_none(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], null: str
) -> None:
    stream = begun(head, null)
    pid = head.instance(null).pid
    cluster.install(hosts["a"], "0.0.1")
    try:
        told = "host a has Trivet 0.0.1 and this supervisor is Trivet"
        wait_for("that is told", lambda: told in head.run("devices", "--all"))
        with head.client() as client:
            client.deployments.create(str(find_demo_model()), name="new", backend="null", device="a/null")
        wait_for(
            "so none is started",
            lambda: any(told in reason for reason in head.reasons("new")),
            tell=lambda: head.reasons("new"),
        )
        assert engines_of(hosts) == {"a": 1, "b": 0}
        head.stop("new")
        stream.goes_on()
    finally:
        cluster.install_ours(hosts["a"])
    head.knows(hosts["a"])
    head.launch("new", "a/null", **SLOW)
    stream.goes_on()
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)
    head.stop("new")


def test_an_agent_that_dies_ends_no_engine(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], null: str
) -> None:
    stream = begun(head, null)
    pid = head.instance(null).pid
    cluster.end_agent(hosts["a"])
    before = stream.num_chunks
    wait_for("7 s of its stream have come", lambda: stream.num_chunks > before + 140 or stream.failure)
    assert not stream.failure
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)
    cluster.join(hosts["a"])
    wait_for("another agent runs", lambda: hosts["a"].pids_of("hosts.agent_process"))
    stream.goes_on()


@pytest.mark.parametrize("loss", ["cut", "frozen"])
def test_a_host_that_is_not_heard_loses_its_engine_and_ends_the_abandoned_one_when_it_is_back(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], loss: str
) -> None:
    lose, bring_back = (FarHost.cut, FarHost.mend) if loss == "cut" else (FarHost.freeze, FarHost.thaw)
    head.launch(loss, **SLOW)
    first = head.where(loss)
    assert first in hosts, head.reasons(loss)
    stream = begun(head, loss)
    lose(hosts[first])
    try:
        wait_for("its client is told", lambda: stream.failure)
        everything_is_told(head, loss)
        other = elsewhere(head, loss, first)
        assert any(f"host {first} has not answered for" in reason for reason in head.reasons(loss))
        assert head.ask(loss)
        assert engines_of(hosts)[first] == 1, "nobody could end it"
        assert f"host {first} has not answered for" in head.run("devices", "--all")
    finally:
        bring_back(hosts[first])
    wait_for("the abandoned one has ended", lambda: engines_of(hosts)[first] == 0)
    assert head.where(loss) == other
    cluster.join(hosts[first])  # Ray itself takes a node that was away for dead, and ends there
    head.stop(loss)


def everything_is_told(head: Head, name: str) -> None:
    """While a host does not answer, too, each within `Head.run`'s deadline."""
    assert name in head.run("ps")
    head.run("logs", name)  # by now perhaps of the next attempt, which has said nothing yet
    assert "null" in head.run("devices", "--all")
    assert "fits on null" in head.run("plan", str(find_demo_model()), "--backend", "null")
