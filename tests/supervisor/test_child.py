from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet.engine.log_bound import EARLIER, MAX_LOG_BYTES
from trivet_supervisor.child import Child

if TYPE_CHECKING:
    from conftest import FakeClock

DEADLINE_S = 60.0


@pytest.fixture
def pipe() -> Iterator[int]:
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)


def script(file: Path, body: str) -> str:
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o700)
    return str(file)


@pytest.fixture
def child(tmp_path: Path, pipe: int, clock: FakeClock) -> Iterator[Child]:
    child = Child("web", [script(tmp_path / "web", "exit 7")], {}, tmp_path / "web.log", pipe, clock)
    yield child
    child.terminate(DEADLINE_S)


def test_an_end_is_told_once_and_followed_by_a_start(child: Child, clock: FakeClock) -> None:
    child.start()
    assert child.wait(DEADLINE_S)
    assert child.keep() == 7
    assert child.keep() is None
    assert not child.is_alive()
    clock.advance(0.5)
    child.keep()
    assert child.wait(DEADLINE_S)
    assert child.keep() == 7, "it ran again"
    assert child.num_failures == 2


def test_one_that_ends_again_and_again_is_never_away_for_long(child: Child, clock: FakeClock) -> None:
    child.start()
    for _ in range(8):
        assert child.wait(DEADLINE_S)
        assert child.keep() == 7
        clock.advance(10.0)
        child.keep()


def test_a_child_that_cannot_be_started_again_is_tried_later(
    child: Child, clock: FakeClock, tmp_path: Path
) -> None:
    child.start()
    assert child.wait(DEADLINE_S)
    child.keep()
    (tmp_path / "web").unlink()
    clock.advance(0.5)
    assert child.keep() is None
    script(tmp_path / "web", "exit 8")
    clock.advance(0.5)
    assert child.keep() is None, "the delay has doubled"
    clock.advance(0.5)
    child.keep()
    assert child.wait(DEADLINE_S)
    assert child.keep() == 8


def test_a_log_folder_that_is_gone_is_made_anew(child: Child, clock: FakeClock) -> None:
    child.log_file = child.log_file.parent / "logs" / "web.log"
    child.start()
    assert child.wait(DEADLINE_S)
    child.keep()
    shutil.rmtree(child.log_file.parent)
    clock.advance(0.5)
    child.keep()
    assert child.wait(DEADLINE_S)
    assert child.keep() == 7
    assert child.log_file.exists()


def test_one_whose_log_cannot_be_opened_is_started_again_all_the_same(
    child: Child, clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child.start()
    assert child.wait(DEADLINE_S)
    child.keep()
    (tmp_path / "file").touch()
    child.log_file = tmp_path / "file" / "web.log"
    clock.advance(0.5)
    child.keep()
    assert child.wait(DEADLINE_S)
    assert child.keep() == 7, "it ran again"
    assert "web cannot write its log" in caplog.text


def test_its_log_is_bounded_and_the_part_before_is_kept(child: Child) -> None:
    child.bound_log()  # before there is one
    child.log_file.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    child.bound_log()
    assert child.log_file.stat().st_size == 0
    kept = child.log_file.with_name(f"{child.log_file.name}{EARLIER}")
    assert kept.stat().st_size == MAX_LOG_BYTES + 1
