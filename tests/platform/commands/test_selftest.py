"""`trivet selftest`: its report, and in which interpreter it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from trivet.commands.selftest import report
from trivet.self_test import OpOutcome


class Outcome(Protocol):
    """What the fixture `trivet` gives."""

    code: int
    out: str
    err: str


OUTCOMES = [
    OpOutcome(("rms_norm",), "nine tokens", "bfloat16", 0.001, 0.02),
    OpOutcome(("swiglu",), "nine tokens", "bfloat16", float("inf"), 0.02, "EZ1001"),
]
# A plugin whose backend tests itself; its interpreter is told by its name.
PLUGIN = """
import sys
from trivet.errors import BackendError, DeviceLost
from trivet.plugins import hookimpl
from trivet.self_test import OpOutcome
from trivet_null.backend import NullBackend

class Tested(NullBackend):
    name = "tested"
    def self_test(self, device):
        if device == 3:
            raise BackendError("device 3 cannot be opened")
        if device == 4:
            raise DeviceLost("op left the device beyond use")
        case = f"device {device} by {sys.executable}"
        yield OpOutcome(("op",), case, "f32", 0.0, 0.1, measured={"gb_per_s": 12.5})
        if device == 2:
            raise RuntimeError("CUDA error: invalid argument")
        if device:
            yield OpOutcome(("op",), "strays", "f32", 0.5, 0.1)
    def self_test_versions(self):
        return {"vendor": "1.2"}

@hookimpl
def trivet_backend():
    return Tested()
"""


@pytest.fixture
def tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plugin is installed where children find it; the home has a settings file of its own."""
    (tmp_path / "trivet_tested.py").write_text(PLUGIN)
    info = tmp_path / "trivet_tested-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trivet-tested\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[trivet.plugins]\ntested = trivet_tested\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("TRIVET_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    yield tmp_path
    sys.modules.pop("trivet_tested", None)


def test_the_table_says_versions_and_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    report(OUTCOMES, {"cann": "9.1.0"}, as_json=False)
    text = capsys.readouterr().out
    assert "cann=9.1.0" in text
    assert "FAILED EZ1001" in text
    assert "1 of 2 cases passed" in text


def test_an_error_that_is_no_number_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    report(OUTCOMES, {"cann": "9.1.0"}, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["versions"] == {"cann": "9.1.0"}
    assert told["schema"] == 1  # who reads reports of others' cards goes by it and these names
    assert told.keys() == {"schema", "versions", "cases"}
    names = {"ops", "case", "dtype", "error", "allowed", "passed", "failure", "measured"}
    assert all(case.keys() == names for case in told["cases"])
    assert [case["passed"] for case in told["cases"]] == [True, False]
    assert told["cases"][1]["error"] is None


def test_it_runs_here_where_the_backend_has_no_interpreter_of_its_own(
    tested: Path, trivet: Callable[..., Outcome]
) -> None:
    done = trivet("selftest", "tested", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["versions"]["vendor"] == "1.2"
    assert {"machine", "python", "trivet", "torch"} <= told["versions"].keys()


def test_a_case_that_strays_fails_the_command(tested: Path, trivet: Callable[..., Outcome]) -> None:
    done = trivet("selftest", "tested", "--device", "1")
    assert done.code == 1
    assert "1 of 2 cases passed" in done.out


@pytest.mark.parametrize(
    ("device", "before", "failure"),
    [("2", 1, "RuntimeError: CUDA error: invalid argument"), ("4", 0, "DeviceLost: op left the device")],
)
def test_a_failure_in_between_is_a_case_behind_those_before_it(
    tested: Path, trivet: Callable[..., Outcome], device: str, before: int, failure: str
) -> None:
    done = trivet("selftest", "tested", "--device", device)
    assert done.code == 1
    assert f"{before} of {before + 1} cases passed" in done.out
    assert failure in done.out
    (*passed, last) = json.loads(trivet("selftest", "tested", "--device", device, "--json").out)["cases"]
    assert [case["passed"] for case in passed] == [True] * before
    assert last["failure"].startswith(failure)


def test_a_device_that_cannot_be_opened_is_an_error_and_no_report(
    tested: Path, trivet: Callable[..., Outcome]
) -> None:
    done = trivet("selftest", "tested", "--device", "3")
    assert done.code == 1
    assert "device 3 cannot be opened" in done.err
    assert "cases passed" not in done.out


def test_a_line_stands_there_before_the_next_case_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel may end the whole process."""
    seen: list[str] = []

    def outcomes() -> Iterator[OpOutcome]:
        for outcome in OUTCOMES:
            yield outcome
            seen.append(capsys.readouterr().out)

    assert not report(outcomes(), {}, as_json=False)
    assert "rms_norm" in seen[0]
    assert "FAILED EZ1001" in seen[1]


def test_what_was_measured_is_a_number_in_json(tested: Path, trivet: Callable[..., Outcome]) -> None:
    told = json.loads(trivet("selftest", "tested", "--json").out)
    assert told["cases"][0]["measured"] == {"gb_per_s": 12.5}
    assert "gb_per_s=12.50" in trivet("selftest", "tested").out


def test_it_runs_in_the_interpreter_that_the_settings_name(
    tested: Path, trivet: Callable[..., Outcome]
) -> None:
    other, seen = tested / "other-python", tested / "seen"
    other.write_text(f'#!/bin/sh\necho "$MARK" > {seen}\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    settings = f'[backend.tested]\npython = "{other}"\nenv = {{ MARK = "of the settings" }}\n'
    (tested / "home" / "trivet.toml").write_text(settings)
    assert trivet("selftest", "tested").code == 0
    assert seen.read_text() == "of the settings\n"
    assert trivet("selftest", "tested", "--device", "1").code == 1, "its exit code is the command's"


def test_a_missing_interpreter_is_named(tested: Path, trivet: Callable[..., Outcome]) -> None:
    (tested / "home" / "trivet.toml").write_text('[backend.tested]\npython = "/nowhere/python"\n')
    done = trivet("selftest", "tested")
    assert done.code == 1
    assert "/nowhere/python, which [backend.tested] names, cannot be started" in done.err


def test_a_backend_without_a_self_test_is_refused_with_those_that_have_one(
    trivet: Callable[..., Outcome],
) -> None:
    done = trivet("selftest", "null")
    assert done.code == 1
    assert "backend 'null' has no self-test; those that have one: ascend" in done.err
