"""What a served site leaves open: the sockets it makes, and what its processes are started with."""

from __future__ import annotations

import socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from conftest import Site

HOSTILE = '"; touch pwned; --port 1 $(id) `id`'


def notices(site: Site) -> list[str]:
    with site.client() as client:
        return [notice for instance in client.instances.list("m") for notice in instance.notices]


def test_a_setting_is_no_argument_and_no_secret_is_one(site: Site) -> None:
    """An engine reads its order from a file; in its command stands that file alone."""
    site.serve()
    site.launch("m", "null", **{"options.notice": HOSTILE})
    (engine,) = site.engine_pids()
    command = psutil.Process(engine).cmdline()
    assert command[1:4] == ["-P", "-m", "trivet.engine.process"]
    assert len(command) == 5
    assert command[4].startswith(str(site.home / "run"))
    site.wait_for("the engine has what was set", lambda: HOSTILE in " ".join(notices(site)))
    assert not list(site.home.rglob("pwned"))
    for process in site.processes():
        with suppress(psutil.NoSuchProcess):  # what asks for devices comes and goes
            words = " ".join(process.cmdline())
            assert HOSTILE not in words
            assert site.token not in words


def test_the_only_sockets_are_ours_and_its_owner_alone_may_use_them(site: Site) -> None:
    site.serve()
    site.launch("m", "null")
    ours = {process.pid for process in site.processes()}
    listening = {
        one.laddr.port
        for one in psutil.net_connections("inet")
        if one.pid in ours and one.status == psutil.CONN_LISTEN and one.laddr
    }
    assert listening == {site.port}
    sockets = [path for path in site.home.rglob("*") if path.is_socket()]
    assert sockets
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in sockets}
    assert set(modes.values()) == {"0o700"}, modes
    bound = {
        one.laddr
        for one in psutil.net_connections("unix")
        if one.pid in ours and one.type == socket.SOCK_STREAM and one.laddr
    }
    assert all(str(name).startswith(str(site.home / "run")) for name in bound), bound
