"""What `trivet doctor` says of the host."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from trivet.commands import host_checks
from trivet.commands.host_checks import (
    Finding,
    check_clock,
    check_compiler,
    check_memory_limit,
    check_structured,
    kernel_clock_is_synchronised,
)


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


def test_a_clock_that_stands_before_the_installation_fails() -> None:
    assert check_clock(lambda: 0.0, is_synchronised=True).status == "fail"
    assert check_clock(is_synchronised=False).status == "warn"
    assert check_clock(is_synchronised=True) == Finding("clock", "ok", "synchronised")


def test_the_kernel_is_asked_for_its_clock() -> None:
    assert kernel_clock_is_synchronised() in (True, False, None)
    assert check_clock().status in ("ok", "warn")


def test_processes_that_the_cgroup_killed_are_told(tmp_path: Path) -> None:
    for name, text in (("max", "1073741824"), ("current", "536870912"), ("events", "oom 3\noom_kill 2\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    found = check_memory_limit(tmp_path)
    assert found.status == "warn"
    assert found.text == "512.0 MiB used, limit 1.0 GiB; 2 processes were killed for it"
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    (tmp_path / "memory.max").write_text("max")
    assert check_memory_limit(tmp_path) == Finding("cgroup", "ok", "512.0 MiB used, no limit")
    assert check_memory_limit(tmp_path / "none").status == "ok"
