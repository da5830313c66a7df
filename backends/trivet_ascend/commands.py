"""The command of this package: `trivet selftest ascend`."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet_ascend.self_test import Outcome


def commands() -> list[Command]:
    """For the hook `trivet_commands`."""
    text = "compare every operation of a device with plain torch; run it in the device's own environment"
    return [Command("selftest", text, _add_arguments, _selftest)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", choices=["ascend"], help="whose operations")
    parser.add_argument("--device", type=int, default=0, help="number among the visible NPUs (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _selftest(given: argparse.Namespace) -> int:
    """Exit code 1 where an operation failed."""
    from trivet_ascend.npu_device import NpuDevice
    from trivet_ascend.op_table import NPU
    from trivet_ascend.self_test import run_full

    device = NpuDevice(given.device)
    outcomes = list(run_full(NPU, device.torch_device))
    report(outcomes, found_versions(), as_json=given.json)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def found_versions() -> dict[str, str]:
    """What belongs into a report: packages, driver, firmware, CANN, machine."""
    from trivet_ascend.detection import find_versions

    found = {"machine": platform.machine(), "python": platform.python_version()}
    for name in ("trivet", "torch", "torch-npu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a package"
    return found | dict(find_versions(Path("/")))


def report(outcomes: list[Outcome], versions: dict[str, str], *, as_json: bool) -> None:
    """The table to paste into a report, or the same as JSON."""
    from trivet.commands.output import print_json, print_table

    if as_json:
        rows = [
            {
                "ops": list(each.ops),
                "case": each.case,
                "dtype": each.dtype,
                "error": None if each.error == float("inf") else each.error,
                "allowed": each.allowed,
                "passed": each.passed,
                "failure": each.failure,
            }
            for each in outcomes
        ]
        print_json({"versions": versions, "cases": rows})
        return
    print(" ".join(f"{name}={text}" for name, text in versions.items()))
    lines = [
        (
            "+".join(each.ops),
            each.case,
            each.dtype,
            f"{each.error:.2g}",
            f"{each.allowed:g}",
            "ok" if each.passed else f"FAILED {each.failure}".strip(),
        )
        for each in outcomes
    ]
    print_table(("OP", "CASE", "DTYPE", "ERROR", "ALLOWED", "RESULT"), lines)
    failed = sum(not each.passed for each in outcomes)
    print(f"{len(outcomes) - failed} of {len(outcomes)} cases passed")
