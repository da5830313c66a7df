from __future__ import annotations

import os
from pathlib import Path

from trivet.lock_holder import write_holder


def test_a_holder_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_text("the one before, with a long name")
    with file.open("r+") as lock:
        write_holder(lock.fileno(), "17")
    assert file.read_text() == "17"


def test_a_lock_whose_holder_cannot_be_written_is_held_all_the_same() -> None:
    with open("/dev/full", "r+b", buffering=0) as full:
        write_holder(full.fileno(), "17")
    reading = os.open("/dev/null", os.O_RDONLY)
    write_holder(reading, "17")
    os.close(reading)
