from __future__ import annotations

import os
from pathlib import Path

import pytest

from trivet.cli import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TRIVET_HOME", str(home))
    monkeypatch.delenv("TRIVET_DATABASE_URL", raising=False)
    return home


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_another_account_than_the_homes_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder to somebody else")
    os.chown(home, 65534, 65534)
    assert main([command, str(tmp_path / "site.tar")]) == 2
    assert f"home {home} belongs to uid 65534 and this is uid 0" in capsys.readouterr().err
    assert not list(home.iterdir())


def test_only_in_a_folder_are_the_newest_kept(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", str(tmp_path / "site.tar"), "--keep", "3"]) == 2
    assert main(["backup", str(tmp_path), "--keep", "0"]) == 2
    assert capsys.readouterr().err.count("is for a folder as PLACE") == 2


def test_a_home_without_a_site_is_told(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["backup", str(tmp_path)]) == 2
    assert "there is no registry at" in capsys.readouterr().err
    assert not list(home.iterdir())
    assert main(["restore", str(tmp_path / "nothing.tar")]) == 2
    assert "nothing.tar does not exist; give the file of `trivet backup`" in capsys.readouterr().err
    assert not list(home.iterdir()), "it is told before anything is made"
