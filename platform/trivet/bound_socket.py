"""A socket whose file somebody has deleted is bound again: else nobody new could reach its process."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import zmq

logger = logging.getLogger(__name__)


def is_as_bound(address: str) -> bool:
    """Whether the file of an `ipc://` address is there, or its folder is not: nothing can be bound there."""
    file = Path(address.removeprefix("ipc://"))
    return file.exists() or not file.parent.is_dir()


def keep_bound(socket: zmq.Socket[bytes], address: str) -> None:
    """To be called now and then by the socket's own thread; who is connected already stays so.

    Raises: zmq.ZMQError where it cannot be bound.
    """
    if is_as_bound(address):
        return
    logger.warning("socket=%s was deleted: it is bound again", address)
    with suppress(zmq.ZMQError):  # an earlier attempt came no further
        socket.unbind(address)
    socket.bind(address)
