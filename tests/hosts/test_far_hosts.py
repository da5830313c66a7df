"""The launcher's contract past one host, on a launcher whose agents are reached over tcp alone."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from far_hosts import FarHost, wait_for
from head import Head, Stream, engines_of

if TYPE_CHECKING:
    from trivet_far import PORT
else:
    PORT = 7070

AGENT = Path(__file__).with_name("far_agent.py")
LONG = 1_000_000
SLOW = {"options.step_ms": "20"}


def start_agent(host: FarHost) -> None:
    host.agent = host.run([sys.executable, str(AGENT), host.name, host.address, str(PORT)])


@pytest.fixture(scope="module")
def head(hosts: dict[str, FarHost], folder: Path, plugin_path: str) -> Iterator[Head]:
    for host in hosts.values():
        start_agent(host)
    made = Head(folder / "head", {"TRIVET_LAUNCHER": "far", "PYTHONPATH": plugin_path})
    known = {name: host.address for name, host in hosts.items()}
    (made.home / "far_hosts.json").write_text(json.dumps(known))
    made.serve()
    wait_for("both hosts are known", lambda: {*"ab"} <= {device.uid[0] for device in made.devices()})
    yield made
    made.close()
    assert engines_of(hosts) == {"a": 0, "b": 0}, "Ctrl-C ends engines wherever they are"


@pytest.fixture
def null(head: Head, hosts: dict[str, FarHost]) -> Iterator[str]:
    """A model on host a."""
    name = "m"
    head.launch(name, "a/null", **SLOW)
    yield name
    head.stop(name)


def test_an_engine_runs_on_its_host_and_is_reached_over_tcp(
    head: Head, hosts: dict[str, FarHost], null: str
) -> None:
    assert engines_of(hosts) == {"a": 1, "b": 0}
    assert head.ask(null)
    (instance,) = head.instances(null)
    assert instance.device_uids == ["a/null"]
    assert instance.pid in hosts["a"].pids()
    assert not list((head.home / "run").glob("engine-*.sock")), "nothing of it is here"
    orders = list((hosts["a"].home / "hosts" / "a").glob("engine-*.json"))
    assert len(orders) == 1
    assert "first_token" in head.run("logs", null), "what it prints is read here"


def test_the_death_of_the_supervisor_touches_no_stream(head: Head, null: str) -> None:
    stream = Stream(head, null, LONG)
    wait_for("it has begun", lambda: stream.num_chunks > 3 or stream.failure)
    before, pid = head.supervisor_pid(), head.instance(null).pid
    os.kill(before, signal.SIGKILL)
    wait_for("another has come", lambda: head.supervisor_pid_or_none() not in (None, before))
    wait_for("it is adopted", lambda: any("adopted pid" in reason for reason in head.reasons(null)))
    stream.goes_on()
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)


def test_an_agent_that_is_gone_ends_no_engine(head: Head, hosts: dict[str, FarHost], null: str) -> None:
    stream = Stream(head, null, LONG)
    wait_for("it has begun", lambda: stream.num_chunks > 3 or stream.failure)
    pid = head.instance(null).pid
    hosts["a"].end_agent()
    began = stream.num_chunks
    wait_for("15 s of its stream have come", lambda: stream.num_chunks > began + 700 or stream.failure)
    assert not stream.failure
    assert (head.instance(null).state, head.instance(null).pid) == ("ready", pid)
    start_agent(hosts["a"])
    wait_for("its host answers", lambda: any(d.uid.startswith("a/") for d in head.devices()))
    stream.goes_on()


def test_a_cut_link_moves_its_engine_with_the_reason_and_the_old_one_ends_when_it_is_mended(
    head: Head, hosts: dict[str, FarHost]
) -> None:
    head.launch("cut", **SLOW)
    first = head.where("cut")
    other = {"a": "b", "b": "a"}[first]
    stream = Stream(head, "cut", LONG)
    wait_for("it has begun", lambda: stream.num_chunks > 3 or stream.failure)
    hosts[first].cut()
    try:
        wait_for("its client is told", lambda: stream.failure)
        wait_for("it is elsewhere", lambda: head.where("cut") == other)
        assert any(f"host {first} has not answered for" in reason for reason in head.reasons("cut"))
        assert head.ask("cut")
        assert engines_of(hosts) == {first: 1, other: 1}, "nobody could end it"
    finally:
        hosts[first].mend()
    wait_for("the abandoned one has ended", lambda: engines_of(hosts) == {first: 0, other: 1})
    assert head.where("cut") == other
    head.stop("cut")


def test_a_host_that_dies_loses_its_engine_to_another(head: Head, hosts: dict[str, FarHost]) -> None:
    head.launch("dies", **SLOW)
    first = head.where("dies")
    other = {"a": "b", "b": "a"}[first]
    hosts[first].kill()
    wait_for("it is elsewhere", lambda: head.where("dies") == other)
    assert any(f"host {first} has not answered for" in reason for reason in head.reasons("dies"))
    start_agent(hosts[first])
    wait_for("the host is back", lambda: any(d.uid.startswith(first) for d in head.devices()))
    assert head.where("dies") == other
    head.stop("dies")
