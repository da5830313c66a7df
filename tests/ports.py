"""Ports for servers that tests start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One of 127.0.0.1 that nobody else is given while this process lives.

    A socket that does not listen holds it; a server binds beside it, whose own may reuse an address
    (SO_REUSEADDR).
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = int(held.getsockname()[1])
    held.detach()
    return port
