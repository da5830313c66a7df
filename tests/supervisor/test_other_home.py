"""Whose engine a row of the registry tells of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trivet.config import Paths, Settings
from trivet_supervisor.other_home import original_home, other_home


def test_only_another_home_that_is_there_is_another(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours/run", tmp_path / "other/run"
    ours.mkdir(parents=True)
    other.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    assert other_home(None, ours) is None
    assert other_home(str(ours), ours) is None
    assert other_home(str(tmp_path / "link/run"), ours) is None
    assert other_home(str(tmp_path / "moved/run"), ours) is None
    assert other_home(str(other), ours) == tmp_path / "other"


@pytest.mark.parametrize("problem", [PermissionError, NotADirectoryError])
def test_a_home_that_is_closed_to_us_is_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: type[OSError]
) -> None:
    """Root may look everywhere, so what an account is told is made up here."""

    def refuse(*_: object) -> bool:
        raise problem

    monkeypatch.setattr(Path, "samefile", refuse)
    assert other_home("/root/.trivet/run", tmp_path) == Path("/root/.trivet")


def test_a_registry_of_a_server_may_have_moved_from_home_to_home(tmp_path: Path) -> None:
    """Of a file it is a copy, in any case."""
    former = Paths(tmp_path / "former")
    former.create()
    shared = Settings(home=str(tmp_path / "ours"), database_url="postgresql://host/registry")
    shared.paths.create()
    assert original_home(str(former.run), Settings(home=shared.home)) == former.home
    assert original_home(str(former.run), shared) is None
    former.lock_file.write_text(str(os.getpid()))
    assert original_home(str(former.run), shared) == former.home
