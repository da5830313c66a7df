"""Requests a minute and at once, over several processes; places of the dead are given back."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest

from trivet.errors import Overloaded
from trivet_web.accounts.limits import Limits
from trivet_web.accounts.principal import ANYONE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Eventually

ONE = replace(ANYONE, name="key one", key_id=1, requests_per_minute=6, max_concurrency=2)
HOLDER = """
import sys, time
from pathlib import Path
from dataclasses import replace
from trivet_web.accounts.limits import Limits
from trivet_web.accounts.principal import ANYONE
limits = Limits(Path(sys.argv[1]))
limits.enter(replace(ANYONE, key_id=1, max_concurrency=2))
print("held", flush=True)
time.sleep(600)
"""


class Clock:
    """CLOCK_MONOTONIC that a test moves."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def processes(tmp_path: Path, clock: Clock) -> Iterator[list[Limits]]:
    """As two web processes hold it."""
    made = [Limits(tmp_path / "limits.db", clock) for _ in range(2)]
    yield made
    for limits in made:
        limits.close()


def num_let_in(processes: list[Limits], tries: int) -> int:
    done = 0
    for number in range(tries):
        try:
            processes[number % 2].count(ONE)
        except Overloaded:
            continue
        done += 1
    return done


def test_a_minute_has_so_many_requests_in_all_processes_together(
    processes: list[Limits], clock: Clock
) -> None:
    assert num_let_in(processes, 20) == 6
    with pytest.raises(Overloaded, match=r"key one has had its requests of this minute \(6\)") as caught:
        processes[1].count(ONE)
    assert (caught.value.retry_after_s, caught.value.code) == (10, "rate_limit_exceeded")
    clock.now_s += 10.1
    assert num_let_in(processes, 5) == 1
    clock.now_s += 600
    assert num_let_in(processes, 20) == 6, "no more is saved up than a minute's"


def test_keys_do_not_share_a_limit_and_one_without_has_none(processes: list[Limits]) -> None:
    assert num_let_in(processes, 20) == 6
    processes[0].count(replace(ONE, key_id=2))
    for _ in range(100):
        processes[0].count(ANYONE)
        processes[0].enter(ANYONE)()


def test_a_clock_that_began_anew_keeps_nobody_out(processes: list[Limits], clock: Clock) -> None:
    assert num_let_in(processes, 20) == 6
    clock.now_s = 5.0  # after a reboot
    assert num_let_in(processes, 20) == 6


def test_so_many_at_once_in_all_processes_together(processes: list[Limits], eventually: Eventually) -> None:
    leave = [limits.enter(ONE) for limits in processes]
    for limits in processes:
        with pytest.raises(Overloaded, match=r"requests under way as it may have \(2\)"):
            limits.enter(ONE)
    leave[0]()
    leave[0] = processes[0].enter(ONE)  # at once in the same process
    leave[0]()
    eventually(lambda: is_let_in(processes[1]), what="another process sees the place")
    with pytest.raises(Overloaded):
        processes[0].enter(ONE)
    leave[1]()
    eventually(lambda: is_let_in(processes[0]), what="another place is free")


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_process_that_ends_gives_its_places_back(tmp_path: Path, processes: list[Limits], how: str) -> None:
    if how == "closed":
        other = Limits(tmp_path / "limits.db")
        other.enter(ONE)
        processes[0].enter(ONE)
        other.close()  # of the same process here: all its places
        assert processes[1].enter(ONE)
        return
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "limits.db")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    processes[0].enter(ONE)
    with pytest.raises(Overloaded):
        processes[0].enter(ONE)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait(30)
    holder.stdout.close()
    processes[0].enter(ONE)


def test_who_leaves_waits_for_nobody_and_the_place_comes_back(
    tmp_path: Path, processes: list[Limits], eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the thread of all streams. Another process holds the file for longer than one waits."""
    leave = [limits.enter(ONE) for limits in processes]
    other = sqlite3.connect(tmp_path / "limits.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for one in leave:
        one()  # were it to wait for the file, it would have given up by now, with the first warning
    assert caplog.messages == []
    eventually(lambda: len(caplog.messages) >= 2, what="the first attempts have failed")
    other.execute("COMMIT")
    other.close()
    third = Limits(tmp_path / "limits.db")
    eventually(lambda: are_both_free(third), what="both places are free for others")
    third.close()


def are_both_free(limits: Limits) -> bool:
    leaves = []
    try:
        leaves = [limits.enter(ONE)]
        leaves.append(limits.enter(ONE))
    except Overloaded:
        return False
    finally:
        for leave in leaves:
            leave()
    return True


def is_let_in(limits: Limits) -> bool:
    try:
        limits.enter(ONE)
    except Overloaded:
        return False
    return True


def test_a_clock_of_the_host_that_is_set_takes_no_place_away(
    processes: list[Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = [limits.enter(ONE) for limits in processes]
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: 1e9)  # it moves with the clock
    with pytest.raises(Overloaded):
        processes[0].enter(ONE)
    for one in leave:
        one()


def test_the_file_is_closed_to_others_and_a_spoilt_one_lets_requests_through(
    tmp_path: Path, processes: list[Limits], caplog: pytest.LogCaptureFixture
) -> None:
    for file in tmp_path.glob("limits.db*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    processes[0]._connection.execute("DROP TABLE rates")
    processes[0].count(ONE)
    assert "limits of keys are not counted" in caplog.text


def test_a_disk_that_refuses_to_roll_back_lets_requests_through_and_counts_again_later(
    tmp_path: Path, clock: Clock, eventually: Eventually
) -> None:
    class Failing:
        """Of the connection: what fails is not written, nor taken back."""

        is_full = False

        def __init__(self, inner: sqlite3.Connection) -> None:
            self.inner = inner

        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if self.is_full and not statement.startswith("BEGIN"):
                raise sqlite3.OperationalError("disk I/O error")
            return self.inner.execute(statement, *values)

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    limits = Limits(tmp_path / "limits.db", clock)
    limits._connection = disk = Failing(limits._connection)
    leave = limits.enter(ONE)
    disk.is_full = True
    limits.count(ONE)
    leave()
    disk.is_full = False
    eventually(lambda: are_both_free(limits), what="the place has come back")
    disk.is_full = True
    limits.close()


@pytest.mark.parametrize("content", [b"\x01" * 8192, b"SQLite format 3\0" + b"\xff" * 8176])
def test_a_damaged_file_is_made_anew_once(tmp_path: Path, clock: Clock, content: bytes) -> None:
    file = tmp_path / "limits.db"
    file.write_bytes(content)
    processes = [Limits(file, clock) for _ in range(2)]
    assert num_let_in(processes, 10) == 6, "they count in one file"
    for limits in processes:
        limits.close()
