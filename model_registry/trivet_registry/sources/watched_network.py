"""Connections of pulls that can be ended at any moment, and on which nobody can stall.

A read timeout counts from byte to byte: a server that sends one each minute would hold a pull for ever, in
the head of its answer as well as in its body. Here every read waits in pieces of a second; between them the
pull says whether it goes on, and a connection must bring `STALL_BYTES` in each `STALL_S` of waiting.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpcore2
import httpx2

PIECE_S = 1.0
STALL_S = 60.0
STALL_BYTES = 1 << 16
Check = Callable[[], None]  # raises where the pull shall not go on


class WatchedTransport(httpx2.HTTPTransport):
    """Args: proxy: URL of an HTTP proxy through which all goes; `check` is called from every wait."""

    def __init__(self, check: Check, proxy: str | None = None) -> None:
        super().__init__(proxy=proxy, retries=1)
        # httpx2 has no argument for the network of its pool, as httpcore2 has.
        self._pool._network_backend = _Backend(check)


class _Backend(httpcore2.NetworkBackend):
    def __init__(self, check: Check) -> None:
        self._check = check
        self._inner = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        self._check()
        stream = self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._check)

    def sleep(self, seconds: float) -> None:
        """Between attempts to connect."""
        self._check()
        self._inner.sleep(seconds)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream, check: Check) -> None:
        self._inner = inner
        self._check = check
        self._waited_s, self._num_bytes = 0.0, 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Raises: ReadTimeout for silence and for a trickle; whatever `check` raises."""
        silent_s = 0.0
        while True:
            self._check()
            begin_s = time.monotonic()
            try:
                data = self._inner.read(max_bytes, PIECE_S)
            except httpcore2.ReadTimeout:
                data = b""
                silent_s += (waited_s := time.monotonic() - begin_s)
                self._count(0, waited_s)
                if timeout is not None and silent_s >= timeout:
                    raise httpcore2.ReadTimeout(f"silent for {silent_s:.0f} s") from None
                continue
            self._count(len(data), time.monotonic() - begin_s)
            return data

    def _count(self, num_bytes: int, waited_s: float) -> None:
        self._waited_s += waited_s
        self._num_bytes += num_bytes
        if self._waited_s < STALL_S:
            return
        if self._num_bytes < STALL_BYTES:
            raise httpcore2.ReadTimeout(f"only {self._num_bytes} bytes came in {self._waited_s:.0f} s")
        self._waited_s, self._num_bytes = 0.0, 0

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._check()
        self._waited_s, self._num_bytes = 0.0, 0  # another request
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        self._check()
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._check)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
