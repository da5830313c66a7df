from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivet_supervisor.launchers.process_table import has_lease, leased_pids, start_time

LEASE = f"test-{os.getpid()}"


@pytest.fixture
def leased() -> Iterator[subprocess.Popen[str]]:
    """A process with a lease, whose name is made to confuse readers of /proc/PID/stat, and its child."""
    code = (
        "import subprocess, sys\n"
        "open('/proc/self/comm', 'w').write('x) R 1 (')\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    env = {**os.environ, "TRIVET_LEASE": LEASE}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process
    os.killpg(process.pid, 9)  # not by lease: a child shows none for a moment while it is executed
    process.communicate(timeout=30)


def child_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    child = int(process.stdout.readline())
    end = time.monotonic() + 20.0
    while not Path(f"/proc/{child}/environ").read_bytes():  # empty while it is executed
        assert time.monotonic() < end
    return child


def test_a_lease_is_found_in_a_process_and_its_children(leased: subprocess.Popen[str]) -> None:
    child = child_of(leased)
    assert sorted(leased_pids(LEASE)) == sorted([leased.pid, child])


def test_a_lease_is_compared_whole(leased: subprocess.Popen[str]) -> None:
    child_of(leased)
    assert has_lease(leased.pid, LEASE)
    assert not has_lease(leased.pid, LEASE[:-1])
    assert not has_lease(leased.pid, f"{LEASE}0")


def test_a_start_time_is_the_same_each_time_and_between_its_parents_and_now(
    leased: subprocess.Popen[str],
) -> None:
    child = child_of(leased)
    first, later = start_time(leased.pid), start_time(child)
    assert first is not None
    assert later is not None
    assert first == start_time(leased.pid)
    own = start_time(os.getpid())
    assert own is not None
    assert own <= first <= later


def test_a_zombie_and_a_stranger_have_no_start_time() -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(zombie.pid) is None
    zombie.wait()
    assert start_time(zombie.pid) is None
