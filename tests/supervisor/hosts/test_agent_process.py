"""The agent of a host as a process: of one site, at the same place after its death, replaced when old."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from trivet.config import environment_of_home
from trivet.endpoints import ClientKeys, client_keys
from trivet.errors import Unavailable
from trivet_supervisor.hosts import agent_calls, agent_keeper
from trivet_supervisor.hosts.agent_calls import HostSilent
from trivet_supervisor.hosts.agent_keeper import keep_agent
from trivet_supervisor.hosts.agent_note import AgentNote, give_host_to, read_note
from trivet_supervisor.hosts.agent_way import AgentAddress, call_agent

HELLO = agent_calls.encode(agent_calls.Hello())
TIMEOUT_S = 30.0


class Host:
    """b, and a site of its own to ask it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "b"
        self.folder = self.home / "hosts" / "b"
        self.keys = client_keys(folder / "keys.json")
        self.others = client_keys(folder / "others.json")
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def keep(self, site_key: str = "", **environ: str) -> AgentNote:
        environ = {**environment_of_home(self.home), **environ}
        return keep_agent(self.home, "b", "127.0.0.1", site_key or self.keys.public, environ)

    def ask(
        self, note: AgentNote, keys: ClientKeys | None = None, timeout_s: float = TIMEOUT_S
    ) -> agent_calls.Answer:
        place = AgentAddress(note.address, note.port, note.key)
        return agent_calls.decode_answer(call_agent(self.context, place, keys or self.keys, HELLO, timeout_s))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    note = read_note(made.folder)
    if note is not None and note.is_alive:
        os.kill(note.pid, signal.SIGKILL)
    made.context.term()


def test_it_answers_its_own_site_and_nobody_else(host: Host) -> None:
    note = host.keep()
    assert isinstance(host.ask(note), agent_calls.Agent)
    with pytest.raises(HostSilent, match=r"no answer from 127\.0\.0\.1:"):
        host.ask(note, host.others, timeout_s=1.0)
    assert host.keep() == note, "it runs already"
    with pytest.raises(Unavailable, match=r"belongs to the site with the key .*site\.key"):
        host.keep(host.others.public)


def test_one_that_died_comes_back_under_the_same_port_and_key(
    host: Host, eventually: Callable[..., None]
) -> None:
    first = host.keep()
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: not first.is_alive)
    second = host.keep()
    assert (second.port, second.key) == (first.port, first.key)
    assert second.pid != first.pid
    assert isinstance(host.ask(second), agent_calls.Agent)


def test_one_of_another_version_is_replaced(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    first = host.keep()
    monkeypatch.setattr(agent_keeper, "installed_version", lambda: "99.1")
    second = host.keep()
    assert second.pid != first.pid
    assert not first.is_alive


def test_it_has_the_environment_that_it_is_given_and_nothing_else(host: Host) -> None:
    note = host.keep(CUDA_VISIBLE_DEVICES="2,3")
    environ = Path(f"/proc/{note.pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=2,3" in environ
    assert os.getsid(note.pid) != os.getsid(0)


def test_what_keeps_it_from_running_is_told_in_its_own_words(host: Host) -> None:
    host.folder.mkdir(parents=True)
    (host.home / "trivet.toml").write_text("lauhcner = 'x'\n")
    with pytest.raises(Unavailable, match=r"its agent does not run: .*lauhcner"):
        host.keep()


def test_a_host_that_joins_under_a_second_name_has_no_agent_there(host: Host) -> None:
    first = host.keep()
    with pytest.raises(Unavailable, match=r"has joined as 'b' before, whose agent runs \(pid \d+\)"):
        keep_agent(host.home, "c", first.address, host.keys.public, environment_of_home(host.home))
    assert not (host.home / "hosts" / "c" / "agent.json").exists()


def test_an_agent_of_a_boot_before_is_not_taken_for_a_process_of_this_one(host: Host) -> None:
    first = host.keep()
    assert first.is_alive
    assert not msgspec.structs.replace(first, boot="of-yesterday").is_alive


def test_a_full_disk_gives_a_host_to_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "hosts" / "b"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            give_host_to(folder, "ours")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []
    give_host_to(folder, "ours")
    assert (folder / "site.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Unavailable, match="belongs to the site with the key ours"):
        give_host_to(folder, "theirs")
