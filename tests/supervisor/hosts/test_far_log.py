"""The log of an engine on another host: every line comes once, whichever of the two files is cut when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trivet.engine.log_bound import LogBound
from trivet_supervisor.hosts import far_log
from trivet_supervisor.hosts.agent_calls import LogPosition
from trivet_supervisor.hosts.far_log import LogCopy, read_log


class Logs:
    """One there, its copy here."""

    def __init__(self, folder: Path) -> None:
        self.there, self.here = folder / "there.log", folder / "here.log"
        self.positions = folder / "run" / "lease.json"
        self.copy = LogCopy(self.here, self.positions)
        self._number = 0

    def print(self, num_lines: int, max_bytes: int = 1 << 20) -> None:
        with self.there.open("ab") as log:
            for _ in range(num_lines):
                self._number += 1
                log.write(f"line {self._number}\n".encode())
            log.flush()
            LogBound(log.fileno(), max_bytes).enforce()

    def fetch(self) -> None:
        has_more = True
        while has_more and not self.copy.has_failed:
            data, position, has_more = read_log(self.there, self.copy.position)
            self.copy.append(data, position)

    def restart(self) -> None:
        self.copy = LogCopy(self.here, self.positions)

    def lines(self) -> list[str]:
        earlier = self.here.with_name(f"{self.here.name}.1")
        return ((earlier.read_text() if earlier.exists() else "") + self.here.read_text()).splitlines()

    def all(self) -> list[str]:
        return [f"line {n + 1}" for n in range(self._number)]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Logs:
    monkeypatch.setattr(far_log, "CHUNK_BYTES", 100)
    return Logs(tmp_path)


def test_a_log_that_is_cut_between_two_looks_comes_whole(logs: Logs) -> None:
    logs.print(50)
    logs.fetch()
    logs.print(70, max_bytes=500)  # cut: none of these has come
    assert logs.there.stat().st_size == 0
    logs.print(20)
    logs.fetch()
    assert logs.lines() == logs.all()


def test_one_that_comes_anew_goes_on_where_the_one_before_was(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.print(60)
    logs.fetch()
    monkeypatch.setattr("trivet_supervisor.hosts.far_log.LogBound", lambda fd: LogBound(fd, 480))
    logs.print(5)
    logs.fetch()  # the copy is cut, the log is not
    assert logs.here.stat().st_size == 0
    logs.restart()
    logs.print(10)
    logs.fetch()
    assert logs.lines() == logs.all()


def test_what_was_written_just_before_a_crash_does_not_come_twice(logs: Logs) -> None:
    logs.print(3)
    logs.fetch()
    before = logs.positions.read_bytes()
    logs.print(3)
    logs.fetch()
    logs.positions.write_bytes(before)  # killed before it was written down
    logs.restart()
    logs.fetch()
    assert logs.lines() == logs.all()


def test_on_a_disk_that_was_full_the_lines_come_later(logs: Logs, tmp_path: Path) -> None:
    logs.print(5)
    logs.here.mkdir()
    logs.fetch()
    assert logs.copy.has_failed
    assert logs.copy.position == LogPosition()
    logs.here.rmdir()
    logs.copy.has_failed = False
    logs.fetch()
    assert logs.lines() == logs.all()


def test_while_it_is_being_cut_nothing_is_read(logs: Logs) -> None:
    logs.print(20)
    logs.fetch()
    position = logs.copy.position
    copied = logs.there.with_name(f"{logs.there.name}.1")
    copied.write_bytes(logs.there.read_bytes())  # the copy stands, the log is as long as before
    assert read_log(logs.there, position) == (b"", position, True)
    os.truncate(logs.there, 0)
    assert read_log(logs.there, position) == (b"", LogPosition(copied.stat().st_mtime_ns, 0), False)
