"""The kernels' thread pool of one engine, on its part of the host's cores."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from trivet.errors import BackendError
from trivet_cpu.core_shares import CoreShare


class NativePool:
    """A pool that is made anew, in 0.1 ms a thread, when the engine's part of the cores changes."""

    def __init__(self, library: ctypes.CDLL, most_threads: int, cores: CoreShare) -> None:
        """`most_threads` is what scratch memory is there for. Raises: BackendError."""
        self._library, self.most_threads, self._cores = library, most_threads, cores
        self._handle: int | None = self._create(most_threads)

    @property
    def handle(self) -> int:
        """What the kernels call `pool`."""
        assert self._handle is not None, "the pool is closed"
        return self._handle

    @contextmanager
    def step(self) -> Iterator[int]:
        """The handle for one step; this thread computes on the engine's cores meanwhile."""
        has_changed = self._cores.refresh()
        with self._cores.held():
            if has_changed:
                self._library.trivet_pool_destroy(self.handle)
                self._handle = None
                # Helpers are started here: they inherit the CPUs of this thread.
                self._handle = self._create(min(self.most_threads, self._cores.num_threads))
            yield self.handle

    def _create(self, num_threads: int) -> int:
        handle: int | None = self._library.trivet_pool_create(num_threads)
        if handle is None:
            raise too_many_threads(num_threads)
        return handle

    def close(self) -> None:
        """End its threads and give the cores back."""
        if self._handle is not None:
            self._library.trivet_pool_destroy(self._handle)
            self._handle = None
        self._cores.close()


def too_many_threads(num_threads: int) -> BackendError:
    """That the host does not allow so many, in words."""
    return BackendError(
        f"the host does not allow the {num_threads} threads of num_threads; lower it, or raise the "
        "limit on processes (ulimit -u, pids of the container)"
    )
