"""A log that its own process keeps small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trivet.engine.log_bound import EARLIER, LogBound


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "i-1.log"


@pytest.fixture
def fd(log: Path) -> Iterator[int]:
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    yield opened
    os.close(opened)


def test_a_log_is_cut_and_the_part_before_is_kept_beside_it(log: Path, fd: int) -> None:
    bound = LogBound(fd, max_bytes=100)
    child = os.dup(fd)  # as a rank that the engine has started
    os.write(fd, b"a" * 100)
    assert not bound.enforce()
    os.write(fd, b"b")
    assert bound.enforce()
    os.write(child, b"next\n")
    os.close(child)
    assert log.read_bytes() == b"next\n"
    earlier = Path(f"{log}{EARLIER}")
    assert earlier.read_bytes() == b"a" * 100 + b"b"
    assert earlier.stat().st_mode & 0o077 == 0


def test_however_much_is_written_two_parts_are_all(log: Path, fd: int) -> None:
    bound = LogBound(fd, max_bytes=1000)
    for number in range(500):
        os.write(fd, b"%099d\n" % number)
        bound.enforce()
    sizes = [file.stat().st_size for file in log.parent.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) <= 2 * 1100
    kept = Path(f"{log}{EARLIER}").read_bytes() + log.read_bytes()
    numbers = [int(line) for line in kept.split()]
    assert numbers == list(range(numbers[0], 500)), "nothing is missing in between"


def test_a_log_that_cannot_be_kept_is_cut_all_the_same(log: Path, fd: int) -> None:
    os.write(fd, b"a" * 101)
    log.unlink()
    assert LogBound(fd, max_bytes=100).enforce()
    assert os.fstat(fd).st_size == 0
    assert not list(log.parent.iterdir())


def test_a_file_that_is_not_appended_to_is_left_alone(log: Path) -> None:
    with log.open("wb") as file:
        file.write(b"x" * 1000)
        file.flush()
        assert not LogBound(file.fileno(), max_bytes=100).enforce()


def test_a_pipe_is_left_alone() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x" * 1000)
    assert not LogBound(writer, max_bytes=100).enforce()
    os.close(reader)
    os.close(writer)
