"""What `trivet doctor` says of the host."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from trivet.commands import host_checks
from trivet.commands.host_checks import check_compiler, check_structured


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


def test_a_missing_grammar_package_is_told_with_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_structured().text.startswith("llguidance 1.")

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(host_checks, "version", missing)
    finding = check_structured()
    assert finding.status == "warn"
    assert "response_format" in finding.text
    assert "trivet[structured]" in finding.advice
