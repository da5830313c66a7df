"""Whose turn it is to run the batches, and what becomes of the thread that waits for it."""

from __future__ import annotations

import fcntl
import itertools
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from batch_client import line, start, state

from trivet_web.batch import runner
from trivet_web.batch.runner import LOCK

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from conftest import Eventually, Site
    from flask.testing import FlaskClient


def test_who_has_not_the_lock_does_not_ask_for_it_without_a_pause(
    site: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []
    locked = runner._locked

    def counted(path: Path) -> AbstractContextManager[bool]:
        tries.append(time.monotonic())
        return locked(path)

    monkeypatch.setattr(runner, "_locked", counted)
    monkeypatch.setattr(runner, "POLL_S", 0.2)
    with (site.settings.paths.run / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        start(site_client, line(0))
        eventually(lambda: len(tries) >= 4)
    assert min(late - early for early, late in itertools.pairwise(tries)) > 0.15


def test_a_lock_that_cannot_be_opened_now_is_tried_again(
    site: Site, site_client: FlaskClient, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    site.start_engine()
    lock = site.settings.paths.run / LOCK
    lock.mkdir()  # as without a free descriptor
    batch_id = start(site_client, line(0))
    eventually(lambda: "batches=stopped" in caplog.text)
    lock.rmdir()
    eventually(lambda: state(site_client, batch_id)["status"] == "completed")
