"""Engines on another host: started, found again, cut off, given up."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec
import pytest
from far_site import LEASE, Far, eventually, order_of

from trivet.endpoints import Endpoints, client_keys
from trivet.engine.doors import endpoints_file
from trivet.errors import Unavailable
from trivet_supervisor.hosts import agent_calls, host_link, remote_launcher
from trivet_supervisor.hosts.agent_calls import HostSilent
from trivet_supervisor.hosts.host_agent import HostAgent
from trivet_supervisor.hosts.remote_launcher import RemoteLauncher
from trivet_supervisor.launchers import local, process_table
from trivet_supervisor.launchers.process_table import leased_pids


def test_an_engine_gets_its_order_there_and_its_log_comes_here(far: Far) -> None:
    handle = far.start()
    assert handle.identity.host == "b"
    (order,) = far.launcher.orders()
    assert (order.lease, order.listen, order.run_dir) == (LEASE, "127.0.0.1", str(far.folder))
    assert order.client_key, "it admits this site alone"
    eventually(lambda: far.log.exists() and "told by " in far.log.read_text())
    assert eventually(handle.processes)[0] == handle.identity
    assert handle.endpoints() is None
    told = Endpoints("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3", "key")
    endpoints_file(far.folder, "i").write_bytes(msgspec.json.encode(told))
    assert eventually(handle.endpoints) == told
    handle.terminate()
    assert eventually(handle.exit_code) == -15


def test_a_supervisor_and_an_agent_that_come_anew_find_it(far: Far) -> None:
    started = far.start()
    far.wire.agent = far.new_agent()
    another = RemoteLauncher("far", far.wire, far.here.paths)
    adopted = another.adopt(started.identity, LEASE, far.log)
    assert adopted is not None
    assert another.find(LEASE) is not None
    assert another.find("no such lease") is None
    adopted.kill()
    assert eventually(adopted.exit_code) is not None
    assert another.adopt(started.identity, LEASE, far.log) is None
    another.close()


def test_of_a_host_that_does_not_answer_nothing_is_said_but_that(far: Far) -> None:
    handle = far.start()
    eventually(handle.processes)
    far.wire.is_cut = True
    assert "host b has not answered for" in eventually(handle.unreachable)
    assert handle.exit_code() is None
    with pytest.raises(HostSilent, match="host b has not answered"):
        far.start("another")
    adopted = far.launcher.adopt(handle.identity, LEASE, far.log)
    assert adopted is not None
    assert adopted.exit_code() is None
    far.wire.is_cut = False
    eventually(lambda: not handle.unreachable())
    assert list(leased_pids(LEASE))


def test_what_was_abandoned_lives_and_is_found_again_when_its_host_is_back(far: Far) -> None:
    handle = far.start()
    far.wire.is_cut = True
    eventually(handle.unreachable)
    handle.abandon()
    with pytest.raises(Unavailable, match="not known whether it runs"):
        far.launcher.find(LEASE, far.log, "b")
    far.wire.is_cut = False
    eventually(lambda: not handle.unreachable())
    found = far.launcher.find(LEASE, far.log, "b")
    assert found is not None
    assert eventually(found.processes)[0] == handle.identity


def test_a_signal_that_its_host_had_not_got_reaches_what_was_abandoned(far: Far) -> None:
    handle = far.start()
    far.wire.is_cut = True
    eventually(handle.unreachable)
    handle.kill()
    handle.abandon()
    far.wire.is_cut = False
    eventually(lambda: not list(leased_pids(LEASE)))


def test_the_files_of_an_attempt_that_is_gone_are_not_those_of_the_next(far: Far) -> None:
    first = far.start()
    first.kill()
    eventually(first.exit_code)
    second = far.start(f"{LEASE}-2")
    far.launcher.discard("i", LEASE)
    eventually(lambda: not (far.folder / "logs" / f"{LEASE}.log").exists())
    assert [order.lease for order in far.launcher.orders()] == [f"{LEASE}-2"]
    second.kill()
    eventually(second.exit_code)
    far.launcher.discard("i", f"{LEASE}-2")
    eventually(lambda: not far.launcher.orders())


def test_whatever_goes_wrong_on_the_way_a_host_counts_as_silent(far: Far) -> None:
    handle = far.start()
    eventually(handle.processes)

    def broken(message: bytes) -> bytes:
        raise RuntimeError("odd")

    whole, far.wire.agent.answer = far.wire.agent.answer, broken  # type: ignore[method-assign]
    assert "RuntimeError: odd" in eventually(handle.unreachable)
    assert "may be this one that is cut off" in handle.cut_off(), "it is the only host"
    far.wire.agent.answer = whole  # type: ignore[method-assign]
    eventually(lambda: not handle.unreachable())
    assert not handle.cut_off()


def test_a_start_that_was_held_up_comes_too_late_for_what_was_given_up(far: Far) -> None:
    far.start("first").kill()
    held: list[bytes] = []
    answer = far.wire.agent.answer

    def hold(message: bytes) -> bytes:
        if isinstance(agent_calls.decode_call(message), agent_calls.Start):
            held.append(message)
            raise HostSilent("no answer in time")
        return answer(message)

    far.wire.agent.answer = hold  # type: ignore[method-assign]
    with pytest.raises(HostSilent):
        far.start()
    assert far.launcher.find(LEASE, None, "b") is None
    for agent in (far.wire.agent, far.new_agent()):  # also one that has come anew
        late = agent_calls.decode_answer((answer if agent is far.wire.agent else agent.answer)(held[0]))
        assert late == agent_calls.Refused("it was told to end before it was started")
    assert not list(leased_pids(LEASE))


def test_a_start_that_nobody_waits_for_any_more_is_refused(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    eventually(lambda: far.launcher._link("b")._ahead_s is not None)
    monkeypatch.setattr(remote_launcher, "START_TIMEOUT_S", -0.5)
    with pytest.raises(Unavailable, match="nobody waits for it any more"):
        far.start()
    assert not list(leased_pids(LEASE))


def test_an_engine_that_the_agent_may_not_see_is_not_gone(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = far.start()
    eventually(handle.processes)
    far.wire.agent = far.new_agent()
    monkeypatch.setattr(process_table, "_lease_of", lambda pid: "")  # as /proc of another account
    monkeypatch.setattr(local, "has_lease", lambda pid, lease: False)
    told = eventually(handle.unreachable)
    assert f"process {handle.identity.pid} runs, and the account of this agent may not look at it" in told
    assert handle.exit_code() is None
    adopted = far.launcher.adopt(handle.identity, LEASE, far.log)
    assert adopted is not None
    with pytest.raises(Unavailable, match="not known whether it runs"):
        far.launcher.find(LEASE, far.log, "b")
    far.launcher.discard("i", LEASE)
    monkeypatch.undo()
    eventually(lambda: not handle.unreachable())
    assert [order.lease for order in far.launcher.orders()] == [LEASE], "its order stays while it lives"


def test_one_walk_over_all_processes_serves_every_engine(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = far.wire.agent
    leases = [f"{LEASE}-{n}" for n in range(8)]
    for n, lease in enumerate(leases):
        order = order_of(f"i{n}", lease)
        assert isinstance(
            agent_calls.decode_answer(agent.answer(agent_calls.encode(agent_calls.Start(order)))),
            agent_calls.Started,
        )
    agent._processes = None
    walks: list[str] = []
    original = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: walks.append(path) or original(path))
    look = agent_calls.encode(agent_calls.Look([agent_calls.Followed(lease) for lease in leases]))
    seen = agent_calls.decode_answer(agent.answer(look))
    assert isinstance(seen, agent_calls.Seen)
    assert all(len(engine.processes) == 1 for engine in seen.engines.values())
    assert walks == ["/proc"]


def test_a_question_that_hangs_past_its_timeout_counts_as_silence(
    far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_link, "LOOK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(host_link, "HANGS_S", 0.2)
    handle = far.start()
    hang = threading.Event()
    answer = far.wire.agent.answer
    far.wire.agent.answer = lambda message: (hang.wait(), answer(message))[1]  # type: ignore[method-assign]
    assert "a question to it has hung for" in eventually(handle.unreachable)
    hang.set()
    eventually(lambda: not handle.unreachable())


def test_an_order_with_the_key_of_another_site_is_refused(far: Far) -> None:
    far.wire.agent = HostAgent("b", "127.0.0.1", far.there, site_key="another")
    with pytest.raises(Unavailable, match="starts engines of another site only"):
        far.start()
    ours = client_keys(far.here.paths.engine_keys_file).public
    far.wire.agent = HostAgent("b", "127.0.0.1", far.there, site_key=ours)
    far.agents.append(far.wire.agent)
    far.start()


def test_a_log_that_cannot_be_written_here_stays_there_until_it_can(far: Far) -> None:
    far.log.parent.parent.mkdir(parents=True, exist_ok=True)
    far.log.parent.write_text("in the way")
    handle = far.start()
    eventually(handle.processes)
    handle.kill()
    assert eventually(handle.exit_code) == -9, "its end is told all the same"
    far.launcher.discard("i", LEASE)
    time.sleep(0.3)  # the errand would have been run by now
    assert (far.folder / "logs" / f"{LEASE}.log").exists()
    far.log.parent.unlink()
    eventually(lambda: far.log.exists() and "told by" in far.log.read_text())
    eventually(lambda: not (far.folder / "logs" / f"{LEASE}.log").exists())


def test_what_cannot_be_started_there_is_told_in_its_own_words(tmp_path: Path) -> None:
    far = Far(tmp_path)
    (tmp_path / "python").unlink()
    with pytest.raises(Unavailable, match=r"host b: engine process cannot be started.*\[backend.NAME\]"):
        far.start()
    far.launcher.close()


def test_a_call_that_an_agent_cannot_read_is_answered(far: Far) -> None:
    answer = agent_calls.decode_answer(far.wire.agent.answer(b"\xc1"))
    assert isinstance(answer, agent_calls.Refused)
    assert "cannot read the call" in answer.reason
