"""The kernels' stream of one engine, on its part of the host's cores: it computes while the host goes on."""

from __future__ import annotations

import ctypes
import logging
import os

from trivet.errors import BackendError
from trivet_cpu.core_shares import CoreShare
from trivet_cpu.native_pool import too_many_threads

logger = logging.getLogger(__name__)


class NativeStream:
    """A stream that is made anew when the engine's part of the cores changes; one thread calls it."""

    def __init__(self, library: ctypes.CDLL, most_threads: int, cores: CoreShare) -> None:
        """`most_threads` is what scratch memory is there for. Raises: BackendError."""
        self._library, self._most_threads, self._cores = library, most_threads, cores
        self._newest = 0  # number of what was posted last, to this stream or one before
        self._base = 0  # what this stream's own numbers are counted from
        self._handle: int | None = self._create(most_threads)
        self._pid = os.getpid()

    def handle(self) -> int:
        """What the kernels call `stream`, for the next step; all before is done where it is a new one."""
        if self._cores.refresh():
            self._renew()
        assert self._handle is not None, "the stream is closed"
        return self._handle

    def _renew(self) -> None:
        """Where the host allows no further threads now, those that are there go on until the next change."""
        try:
            with self._cores.held():  # its threads inherit the CPUs of this thread
                new = self._create(min(self._most_threads, self._cores.num_threads))
        except BackendError as error:
            logger.warning("the threads of before go on: %s", error)
            return
        self.wait()
        self._library.trivet_stream_destroy(self._handle)
        self._handle, self._base = new, self._newest

    def posted(self, number: int) -> int:
        """What `wait` takes for what the kernels have called `number`."""
        self._newest = self._base + number
        return self._newest

    def wait(self, number: int | None = None) -> None:
        """Until this is done; None: all. This thread computes meanwhile, on the engine's cores."""
        if self._handle is None:  # closed: nothing is under way
            return
        with self._cores.held():
            wanted = self._newest if number is None else number
            self._library.trivet_stream_wait(self._handle, wanted - self._base)

    def _create(self, num_threads: int) -> int:
        handle: int | None = self._library.trivet_stream_create(num_threads)
        if handle is None:
            raise too_many_threads(num_threads)
        return handle

    def close(self) -> None:
        """End its threads, once they have done what they have begun, and give the cores back."""
        if self._pid != os.getpid():
            return  # a fork: threads and cores are its parent's
        if self._handle is not None:
            self._library.trivet_stream_destroy(self._handle)
            self._handle = None
        self._cores.close()
