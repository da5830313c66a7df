"""The kernels' stream of one engine, on its part of the host's cores: it computes while the host goes on."""

from __future__ import annotations

import ctypes

from trivet_cpu.core_shares import CoreShare
from trivet_cpu.native_pool import too_many_threads


class NativeStream:
    """A stream that is made anew when the engine's part of the cores changes; one thread calls it."""

    def __init__(self, library: ctypes.CDLL, most_threads: int, cores: CoreShare) -> None:
        """`most_threads` is what scratch memory is there for. Raises: BackendError."""
        self._library, self._most_threads, self._cores = library, most_threads, cores
        self._newest = 0  # number of what was posted last, to this stream or one before
        self._base = 0  # what this stream's own numbers are counted from
        self._handle: int | None = self._create(most_threads)

    def handle(self) -> int:
        """What the kernels call `stream`, for the next step; all before is done where it is a new one."""
        if self._cores.refresh():
            self.wait()
            self._library.trivet_stream_destroy(self._handle)
            self._handle, self._base = None, self._newest
            with self._cores.held():  # its threads inherit the CPUs of this thread
                self._handle = self._create(min(self._most_threads, self._cores.num_threads))
        assert self._handle is not None, "the stream is closed"
        return self._handle

    def posted(self, number: int) -> int:
        """What `wait` takes for what the kernels have called `number`."""
        self._newest = self._base + number
        return self._newest

    def wait(self, number: int | None = None) -> None:
        """Until this is done; None: all. This thread computes meanwhile, on the engine's cores."""
        with self._cores.held():
            wanted = self._newest if number is None else number
            self._library.trivet_stream_wait(self._handle, wanted - self._base)

    def _create(self, num_threads: int) -> int:
        handle: int | None = self._library.trivet_stream_create(num_threads)
        if handle is None:
            raise too_many_threads(num_threads)
        return handle

    def close(self) -> None:
        """End its threads, once they have done what was posted, and give the cores back."""
        if self._handle is not None:
            self._library.trivet_stream_destroy(self._handle)
            self._handle = None
        self._cores.close()
