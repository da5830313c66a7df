"""A socket whose file somebody has deleted is bound again: else nobody new could reach its process."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import zmq

logger = logging.getLogger(__name__)


def has_file(address: str) -> bool:
    """Whether the file of an `ipc://` address is there."""
    return Path(address.removeprefix("ipc://")).exists()


def keep_bound(socket: zmq.Socket[bytes], address: str) -> None:
    """To be called now and then by the socket's own thread; who is connected already stays so.

    Raises: zmq.ZMQError where it cannot be bound, as in a folder that is gone.
    """
    if has_file(address):
        return
    logger.warning("socket=%s was deleted: it is bound again", address)
    with suppress(zmq.ZMQError):  # an earlier attempt came no further
        socket.unbind(address)
    socket.bind(address)
