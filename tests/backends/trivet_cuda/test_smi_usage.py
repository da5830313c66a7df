"""How busy GPUs are by nvidia-smi, which here prints what we say."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_machines import FIRST, SECOND, tool, without_nvml

from trivet.optional_contract import DeviceUsage, DeviceUser

GPUS = f"{FIRST}, 4096, 81559, 97, 61, 612.25\n{SECOND}, 0, 32768, [N/A], [N/A], [N/A]\n"
PROCESSES = f"{FIRST}, 4711, 4000\n{FIRST}, 4712, [N/A]\n"


def told(folder: Path, processes: str) -> dict[str, DeviceUsage]:
    """`processes` is what the tool does when it is asked for them."""
    (folder / "gpus").write_text(GPUS)
    (folder / "processes").write_text(PROCESSES)
    script = f'case "$1" in --query-gpu=*) cat {folder}/gpus ;; *) {processes} ;; esac'
    return without_nvml(folder, tool(folder, script)).usage()


def test_without_nvml_the_tool_tells_load_and_users(tmp_path: Path) -> None:
    usage = told(tmp_path, f"cat {tmp_path}/processes")
    users = (DeviceUser(4711, 4000 << 20), DeviceUser(4712))
    assert usage[FIRST] == DeviceUsage(4096 << 20, 81559 << 20, 97, 61, 612.25, users)
    assert usage[SECOND] == DeviceUsage(0, 32768 << 20, None, None, None, ())


def test_users_that_it_does_not_tell_are_not_none_at_all(tmp_path: Path) -> None:
    assert {usage.users for usage in told(tmp_path, "exit 1").values()} == {None}


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found"])
def test_a_tool_that_fails_tells_nothing(tmp_path: Path, script: str) -> None:
    assert without_nvml(tmp_path, tool(tmp_path, script)).usage() == {}
