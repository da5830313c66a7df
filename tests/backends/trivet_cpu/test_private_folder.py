"""A folder in the host's temporary one that no other user can plant files in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trivet_cpu.private_folder import private_folder


def test_it_is_made_for_this_user_alone_and_found_again(tmp_path: Path) -> None:
    folder = private_folder("things", tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.name == f"things-{os.getuid()}"
    assert private_folder("things", tmp_path) == folder


def test_one_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    private_folder("things", tmp_path).chmod(0o777)
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        private_folder("things", tmp_path)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"things-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        private_folder("things", tmp_path)
