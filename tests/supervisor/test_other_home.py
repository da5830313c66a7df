"""Whose engine a row of the registry tells of."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet_supervisor.other_home import other_home


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
