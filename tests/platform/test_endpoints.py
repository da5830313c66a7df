"""Addresses of engines, and the keys without which nobody reaches one over tcp."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import msgspec
import pytest
import zmq

from trivet.config import engine_address
from trivet.endpoints import ClientKeys, Endpoints, client_keys, connect, local_endpoints
from trivet.engine.doors import Doors, endpoints_file
from trivet.errors import ConfigError, Unavailable
from trivet.messages import LaunchOrder

DEADLINE_MS = 20_000


def order(run_dir: Path, keys: ClientKeys | None = None, listen: str = "127.0.0.1") -> LaunchOrder:
    return LaunchOrder(
        instance_id="a1",
        lease="l",
        model_path="m",
        served_model_name="m",
        backend="null",
        device_uids=[],
        settings={},
        run_dir=str(run_dir),
        listen=listen if keys else "",
        client_key=keys.public if keys else "",
    )


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


def open_all(doors: Doors) -> dict[str, zmq.Socket[bytes]]:
    kinds = {"sock": zmq.ROUTER, "beat": zmq.PUB, "ctl": zmq.ROUTER}
    sockets = {kind: zmq.Context.instance().socket(number) for kind, number in kinds.items()}
    for kind, socket in sockets.items():
        socket.linger = 0
        doors.open(socket, kind)
    return sockets


def test_over_tcp_an_engine_admits_its_site_alone(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    keys, strangers = tmp_path / "site.json", tmp_path / "stranger.json"
    doors = Doors(order(tmp_path, client_keys(keys)))
    sockets = open_all(doors)
    doors.announce()
    told = msgspec.json.decode(endpoints_file(tmp_path, "a1").read_bytes(), type=Endpoints)
    assert told.ctl.startswith("tcp://127.0.0.1:")
    assert len({told.sock, told.beat, told.ctl}) == 3
    with context.socket(zmq.DEALER) as stranger, context.socket(zmq.DEALER) as bare:
        stranger.linger = bare.linger = 0
        connect(stranger, told.ctl, told.server_key, strangers)
        bare.connect(told.ctl)
        stranger.send(b"stranger")
        bare.send(b"bare")
        with context.socket(zmq.DEALER) as ours:
            ours.linger = 0
            connect(ours, told.ctl, told.server_key, keys)
            ours.send(b"ours")
            assert sockets["ctl"].poll(DEADLINE_MS)
            assert sockets["ctl"].recv_multipart()[-1] == b"ours"
            ours.send(b"again")
            assert sockets["ctl"].poll(DEADLINE_MS)
            assert sockets["ctl"].recv_multipart()[-1] == b"again", "and nothing of the others"
    for socket in sockets.values():
        socket.close()
    doors.close()


def test_one_socket_hears_engines_of_both_kinds(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    keys = tmp_path / "site.json"
    far = Doors(order(tmp_path, client_keys(keys)))
    far_sockets = open_all(far)
    far.announce()
    told = msgspec.json.decode(endpoints_file(tmp_path, "a1").read_bytes(), type=Endpoints)
    near = Doors(order(tmp_path))
    near_sockets = open_all(near)
    near.announce()
    heard = context.socket(zmq.SUB)
    heard.linger = 0
    heard.subscribe(b"")
    connect(heard, told.beat, told.server_key, keys)
    connect(heard, engine_address(tmp_path, "a1", "beat"), "", keys)
    found: set[bytes] = set()
    for _ in range(400):
        far_sockets["beat"].send(b"far")
        near_sockets["beat"].send(b"near")
        if heard.poll(50):
            found.add(heard.recv())
        if len(found) == 2:
            break
    assert found == {b"far", b"near"}
    heard.close()
    for socket in [*far_sockets.values(), *near_sockets.values()]:
        socket.close()
    far.close()
    near.close()


def test_an_address_that_is_not_this_hosts_is_a_sentence(tmp_path: Path) -> None:
    doors = Doors(order(tmp_path, client_keys(tmp_path / "site.json"), listen="192.0.2.1"))
    told = r"cannot listen on 192\.0\.2\.1.*its launcher"
    with zmq.Context.instance().socket(zmq.PUB) as socket, pytest.raises(Unavailable, match=told):
        doors.open(socket, "beat")
    doors.close()


def test_whoever_asks_first_makes_the_keys_and_all_others_have_the_same(tmp_path: Path) -> None:
    file, found = tmp_path / "keys.json", []
    threads = [Thread(target=lambda: found.append(client_keys(file))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert set(found) == {client_keys(file)}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_keys_that_cannot_be_read_are_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"keys\.json, cannot be read.*backup"):
        client_keys(file)
    with pytest.raises(ConfigError, match="wants keys"):
        connect(None, "tcp://x:1", "key", None)  # type: ignore[arg-type]


def test_local_addresses_are_those_of_the_run_directory(tmp_path: Path) -> None:
    found = local_endpoints(tmp_path, "a1")
    assert found == Endpoints(*(engine_address(tmp_path, "a1", kind) for kind in ("sock", "beat", "ctl")))
