"""`python -m trivet_supervisor.hosts.agent_process NAME ADDRESS SITE_KEY`: the agent of this host, over tcp.

Both sides prove themselves (CurveZMQ): the site knows the agent's key by whoever started it, and the agent
admits the key of one site. It ends by SIGTERM, and engines go on without it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading
import time
from pathlib import Path

import zmq
from zmq.auth.thread import ThreadAuthenticator

from trivet import __version__
from trivet.config import load_settings
from trivet.endpoints import ClientKeys, client_keys, keep_alive
from trivet.engine.doors import OnlyThe
from trivet.engine.log_bound import LogBound
from trivet.errors import TrivetError, Unavailable
from trivet_supervisor.hosts.agent_note import AgentNote, give_host_to, read_note, write_note
from trivet_supervisor.hosts.answering import Answering
from trivet_supervisor.hosts.host_agent import HostAgent
from trivet_supervisor.launchers.process_table import boot_id, start_time

logger = logging.getLogger(__name__)

NUM_THREADS = 8
ZAP_DOMAIN = "agent"
LOG_INTERVAL_S = 60.0


def serve_agent(name: str, address: str, site_key: str) -> None:
    """For ever. Raises: Unavailable where it cannot, with the reason; OSError."""
    settings = load_settings()
    folder = settings.paths.home / "hosts" / name
    give_host_to(folder, site_key)
    lock = _lock(folder / "agent.lock", name)
    try:
        keys = client_keys(folder / "agent-keys.json")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        socket = _admitting(context, keys, site_key)
        port = _bind(socket, address, read_note(folder))
        agent = HostAgent(name, address, settings, site_key)
        began = start_time(os.getpid()) or 0.0
        note = AgentNote(os.getpid(), began, __version__, address, port, keys.public, site_key, boot_id())
        write_note(folder, note)
        logger.info("host=%s address=%s port=%d version=%s", name, address, port, __version__)
        threading.Thread(target=_bound_log, name="log", daemon=True).start()
        Answering(context, socket, agent.answer, NUM_THREADS).run()
    finally:
        os.close(lock)


def _lock(file: Path, name: str) -> int:
    """Two agents would start an engine twice. Raises: Unavailable."""
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise Unavailable(f"another agent of host {name} runs, and has {file}") from error
    return lock


def _admitting(context: zmq.Context[zmq.Socket[bytes]], keys: ClientKeys, site_key: str) -> zmq.Socket[bytes]:
    guard = ThreadAuthenticator(context)
    guard.start()
    guard.configure_curve_callback(domain=ZAP_DOMAIN, credentials_provider=OnlyThe(site_key))
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = 1
    socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
    socket.zap_domain = ZAP_DOMAIN.encode()
    keep_alive(socket)
    return socket


def _bind(socket: zmq.Socket[bytes], address: str, before: AgentNote | None) -> int:
    """The port of the agent before, where it is free: sites know it. Raises: Unavailable."""
    host = f"[{address}]" if ":" in address else address
    socket.ipv6 = ":" in address
    for port in ["*"] if before is None else [str(before.port), "*"]:
        try:
            socket.bind(f"tcp://{host}:{port}")
            break
        except zmq.ZMQError as error:
            if port == "*":
                raise Unavailable(f"the agent cannot listen on {address}: {error}") from error
    return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])


def _bound_log() -> None:
    while True:
        LogBound().enforce()
        time.sleep(LOG_INTERVAL_S)


def main() -> int:
    """Entry of the process."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    try:
        serve_agent(*sys.argv[1:])
    except (TrivetError, OSError) as error:
        logger.error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
