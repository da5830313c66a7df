"""The suite as somebody else runs it: the documented command, in a process and a folder of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trivet import contract, contract_suite
from trivet.contract_suite import cases


def run_suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "trivet.contract_suite.plugin",
        "--pyargs",
        cases.__name__,
    ]
    return subprocess.run(
        [*command, "-v", "-rs", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_documented_command_tests_the_named_backend_with_its_options(tmp_path: Path) -> None:
    assert "pytest -p trivet.contract_suite.plugin --pyargs trivet.contract_suite.cases" in (
        contract_suite.__doc__ or ""
    )
    option = ("--trivet-option", "max_in_flight=1")
    done = run_suite(tmp_path, "--trivet-backend", "null", *option, "-k", "queued_behind or empty_batch")
    assert done.returncode == 0, done.stdout
    assert "test_an_empty_batch_gives_an_empty_result[null-f32] PASSED" in done.stdout
    assert "one step at a time" in done.stdout, "the option did not reach the backend"
    assert "[cpu" not in done.stdout


def test_a_backend_that_is_not_installed_is_named_with_those_that_are(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "--trivet-backend", "abacus")
    assert done.returncode != 0
    assert re.search(r"backend 'abacus' is not installed; installed: .*null", done.stdout + done.stderr)


@pytest.mark.parametrize("rule", range(1, 10))
def test_each_rule_of_the_contract_has_a_module_of_cases(rule: int) -> None:
    assert re.search(rf"^ *{rule}\. ", contract.__doc__ or "", re.MULTILINE)
    folder = Path(cases.__file__).parent
    heads = [path.read_text().split('"""')[1] for path in folder.glob("test_*.py")]
    named = {int(number) for head in heads for number in re.findall(r"\d", head.split(":")[0])}
    assert rule in named
