"""Refusal on a machine that is not quiet, and the lock."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from trivet_bars.quiet import NotQuiet, busy_share, locked, wait_until_quiet


def stat(user: int, idle: int, steal: int = 0) -> str:
    return f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n"


def test_the_busy_share_is_of_the_window_and_not_since_the_start() -> None:
    reads = iter([stat(900, 100), stat(903, 197)])
    assert busy_share(lambda: next(reads), 0.0) == pytest.approx(0.03)


def test_what_the_host_of_a_virtual_machine_takes_is_busy() -> None:
    reads = iter([stat(0, 0), stat(0, 90, steal=10)])
    assert busy_share(lambda: next(reads), 0.0) == pytest.approx(0.1)


def test_it_waits_until_the_others_have_ended() -> None:
    shares: Iterator[float] = iter([0.9, 0.5, 0.02])
    assert wait_until_quiet(60.0, lambda: next(shares), lambda: 0.0) == 0.02


def test_a_machine_that_stays_busy_is_refused_with_the_share_and_the_way_out() -> None:
    clock = count(0.0, 10.0)
    with pytest.raises(NotQuiet, match=r"90% of the cores .* --noisy"):
        wait_until_quiet(60.0, lambda: 0.9, lambda: next(clock))


def test_the_lock_is_held_while_something_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with locked(file), file.open("a") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with file.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
