"""Where an engine is reached: `ipc://` on one host, `tcp://` with CURVE keys between hosts.

An `ipc://` socket is a file in a run directory of mode 0700, and who may open it is whom the engine trusts.
Over `tcp://` both sides prove themselves and every byte is encrypted (CurveZMQ, rfc.zeromq.org/spec/26): an
engine makes its keys itself and tells the public one through its launcher; a site has one pair for its
supervisor and its web processes, whose public half stands in the launch order. The secret halves never leave
their hosts.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import zmq

from trivet.config import engine_address
from trivet.errors import ConfigError

# Of a connection over tcp: a cut link sends nothing, so both sides ask. Well under SILENCE_LIMIT_S twice.
HEARTBEAT_MS = 2000
HEARTBEAT_TIMEOUT_MS = 8000
KINDS = ("sock", "beat", "ctl")


class Endpoints(msgspec.Struct, frozen=True):
    """The three sockets of one engine process (messages.py)."""

    sock: str
    beat: str
    ctl: str
    server_key: str = ""  # the engine's public key (Z85); empty with `ipc://`


class ClientKeys(msgspec.Struct, frozen=True):
    """The pair of a site, Z85."""

    public: str
    secret: str


def local_endpoints(run_dir: str | Path, instance_id: str) -> Endpoints:
    """Those of an engine of this host. Raises: ConfigError where a path is too long."""
    return Endpoints(*(engine_address(run_dir, instance_id, kind) for kind in KINDS))


def client_keys(file: Path) -> ClientKeys:
    """The site's pair, made by whoever asks first; mode 0600.

    Raises: ConfigError where the file cannot be read or written, or holds something else.
    """
    try:
        if not file.exists():
            _make_keys(file)
        return msgspec.json.decode(file.read_bytes(), type=ClientKeys)
    except OSError as error:
        raise ConfigError(f"the keys to engines, {file}, cannot be used: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"the keys to engines, {file}, cannot be read: {error}; put the file back from a backup. "
            "Without it engines on other hosts cannot be reached: end them there, remove it and start again"
        ) from error


def _make_keys(file: Path) -> None:
    """Whole or absent, whoever else makes them at the same time. Raises: OSError."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    descriptor, scratch = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)  # of mode 0600
    try:
        with open(descriptor, "wb") as out:
            out.write(msgspec.json.encode(ClientKeys(public, secret)))
            out.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # of two at once the first stays
            os.link(scratch, file)
    finally:
        os.unlink(scratch)


def connect(socket: zmq.Socket[bytes], address: str, server_key: str, key_file: Path | None) -> None:
    """Connect, as a client that proves itself where the engine has a key.

    The options of a security mechanism belong to the next `connect`, so one socket may have engines of both
    kinds.

    Raises: ConfigError where the site's keys cannot be read; zmq.ZMQError.
    """
    if server_key:
        if key_file is None:
            raise ConfigError(f"{address} wants keys, and this process has none")
        keys = client_keys(key_file)
        socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        socket.curve_serverkey = server_key.encode()
        keep_alive(socket)
    else:
        socket.plain_server = 0  # back to no mechanism: there is no option of that name
    socket.connect(address)


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Notice within seconds that the other side of a tcp connection cannot be reached."""
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
