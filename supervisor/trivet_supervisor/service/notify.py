"""Tells systemd that the service is up (sd_notify(3)); elsewhere nobody listens."""

from __future__ import annotations

import logging
import socket

logger = logging.getLogger(__name__)


def tell_service_manager(address: str | None, state: str) -> None:
    """Send `state` ("READY=1") to the socket that NOTIFY_SOCKET names; `@` begins an abstract one."""
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            out.sendall(state.encode())
    except OSError as error:  # systemd will say that the start took too long; what can be served is served
        logger.warning("the service manager at %s cannot be told %s: %s", address, state, error)
