"""The certificate that the web server shows: read again when its files have changed, as after a renewal."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from trivet.config import Settings
from trivet.errors import ConfigError
from trivet.tls import server_context
from trivet_web.stream_worker.client_socket import ClientSocket, TlsClientSocket

logger = logging.getLogger(__name__)
LOOK_INTERVAL_S = 5.0


class Certificate:
    """Of one worker, used by its main thread. Connections keep the one that they began with."""

    def __init__(self, settings: Settings) -> None:
        """Raises: ConfigError."""
        self._settings = settings
        self._looked_s = 0.0
        self._seen = self._look()
        self._context = _prepared(server_context(settings))

    def secured(self, client: ClientSocket) -> ClientSocket:
        """A socket that is still to be greeted; as it was, where there is no TLS. Raises: OSError."""
        if self._context is None:
            return client
        secured = self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
        assert isinstance(secured, TlsClientSocket)
        return secured

    def renew(self, now: float) -> None:
        """Where the files are new and good, new connections get them; what is not good is told once."""
        if self._context is None or now < self._looked_s + LOOK_INTERVAL_S:
            return
        self._looked_s = now
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._context = _prepared(server_context(self._settings))
            logger.warning("certificate=renewed file=%s", self._settings.tls_cert)
        except ConfigError as error:  # one of the two may just be written
            logger.warning("certificate=kept reason=%s", error)

    def _look(self) -> list[tuple[int, int, int]]:
        """What changes when a file does: also when it is a link that points elsewhere."""
        looks = []
        for file in (self._settings.tls_cert, self._settings.tls_key):
            try:
                status = os.stat(Path(file or "").expanduser())
                looks.append((status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError:
                looks.append((0, 0, 0))
        return looks


def _prepared(context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if context is not None:
        context.sslsocket_class = TlsClientSocket
    return context
