"""What a worker does where a connection cannot be taken."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from trivet_web.stream_worker.worker import StreamWorker


class Failing:
    """A listener of a host that is short of something."""

    sock = object()

    def __init__(self, number: int) -> None:
        self._number = number

    def accept(self) -> Any:
        raise OSError(self._number, "it fails")


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EPROTO, errno.ENETDOWN])
def test_a_connection_that_cannot_be_taken_ends_no_worker(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker = StreamWorker.__new__(StreamWorker)
    worker.nr_conns, worker.worker_connections, worker._complained_s = 0, 10, float("-inf")
    worker.log = logging.getLogger("worker")
    worker.accept(Failing(number))
    worker.accept(Failing(number))
    assert caplog.text.count("a connection was not taken") == 1


def test_a_connection_that_was_given_up_meanwhile_is_nothing_to_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = StreamWorker.__new__(StreamWorker)
    worker.nr_conns, worker.worker_connections, worker._complained_s = 0, 10, float("-inf")
    worker.log = logging.getLogger("worker")
    worker.accept(Failing(errno.ECONNABORTED))
    assert not caplog.text
