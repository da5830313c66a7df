"""What `trivet doctor` says of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet.commands.host_checks import check_compiler


def test_a_missing_compiler_is_told_with_what_it_costs_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = check_compiler()
    assert missing.status == "warn"
    assert "slower" in missing.text
    assert "apt-get install g++" in missing.advice
    (tmp_path / "g++").touch(mode=0o755)
    assert check_compiler().text == str(tmp_path / "g++")
