"""`trivet selftest`: every operation of a device against plain torch, as a table to paste into a report.

It runs in the backend's own environment (`[backend.NAME]` in trivet.toml), as its engines do: a process of
that interpreter runs this module as a program.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from trivet import __version__
from trivet.commands.output import add_json_option, print_json
from trivet.config import inherited_environment, load_settings
from trivet.errors import DeviceLost, TrivetError, Unsupported
from trivet.plugins import Command, load_plugins
from trivet.self_test import OpOutcome, TestsItself

SCHEMA = 1  # of the JSON; another number where a name changes what it says or goes


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="BACKEND", help="whose operations, such as ascend")
    parser.add_argument(
        "--device", type=int, default=0, help="number among the visible devices (default: %(default)s)"
    )
    add_json_option(parser)


def _run(given: argparse.Namespace) -> int:
    """Exit code 1 where an operation failed."""
    chosen = load_settings().for_backend(given.backend)
    if chosen.python == sys.executable and not chosen.env:
        return run_here(given)
    command = [chosen.python, "-P", "-m", __name__, given.backend, "--device", str(given.device)]
    # torch would import torch_npu before anything could explain its errors.
    environment = {**inherited_environment(), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **chosen.env}
    try:
        done = subprocess.run([*command, *["--json"] * given.json], env=environment, check=False)
    except OSError as error:
        raise Unsupported(
            f"{chosen.python}, which [backend.{given.backend}] names, cannot be started: {error.strerror}; "
            "correct `python` there"
        ) from error
    return done.returncode


def run_here(given: argparse.Namespace) -> int:
    """In this interpreter. Raises: Unsupported, BackendError."""
    host = load_plugins()
    backend = host.backend(given.backend)
    if not isinstance(backend, TestsItself):
        able = sorted(name for name, each in host.backends.items() if isinstance(each, TestsItself))
        raise Unsupported(
            f"backend {given.backend!r} has no self-test; those that have one: {', '.join(able) or 'none'}"
        )
    versions = {**common_versions(), **backend.self_test_versions()}
    return 0 if report(to_the_end(backend.self_test(given.device)), versions, as_json=given.json) else 1


def to_the_end(outcomes: Iterable[OpOutcome]) -> Iterator[OpOutcome]:
    """A failure in between is the last case, behind those that came before it.

    Raises: TrivetError where nothing could begin, such as a device that cannot be opened.
    """
    count = 0
    try:
        for count, outcome in enumerate(outcomes, 1):  # noqa: B007  # for the message
            yield outcome
    except (TrivetError, RuntimeError) as error:
        if not count and isinstance(error, TrivetError) and not isinstance(error, DeviceLost):
            raise
        case = f"what comes after {count} cases did not run"
        yield OpOutcome(("self-test",), case, "", float("inf"), 0.0, f"{type(error).__name__}: {error}")


def common_versions() -> dict[str, str]:
    """Of what every report needs."""
    found = {"machine": platform.machine(), "python": platform.python_version(), "trivet": __version__}
    return found | {"torch": package_version("torch")}


def package_version(name: str) -> str:
    """Without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a package"


def report(outcomes: Iterable[OpOutcome], versions: Mapping[str, str], *, as_json: bool) -> bool:
    """Whether all passed. A line for each as it comes: a kernel may end this process; or all as JSON."""
    found: list[OpOutcome] = []
    if not as_json:
        print(" ".join(f"{name}={text}" for name, text in versions.items()))
    for each in outcomes:
        if not as_json and not found:
            _print_line("OP", "DTYPE", "ERROR", "ALLOWED", "CASE", "RESULT")
        found.append(each)
        if not as_json:
            numbers = (f"{each.error:.2g}", f"{each.allowed:g}")
            _print_line("+".join(each.ops), each.dtype or "-", *numbers, each.case, _result(each))
    failed = sum(not each.passed for each in found)
    if as_json:
        print_json({"schema": SCHEMA, "versions": versions, "cases": [_as_object(each) for each in found]})
    else:
        print(f"{len(found) - failed} of {len(found)} cases passed")
    return not failed


def _print_line(*cells: str) -> None:
    widths = (17, 9, 8, 8, 64, 0)
    print(*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)


def _result(outcome: OpOutcome) -> str:
    if not outcome.passed:
        return f"FAILED {outcome.failure}".strip()
    return " ".join(("ok", *(f"{name}={value:,.2f}" for name, value in outcome.measured.items())))


def _as_object(outcome: OpOutcome) -> dict[str, object]:
    """JSON has no infinity: an error that is none is null."""
    return {
        "ops": list(outcome.ops),
        "case": outcome.case,
        "dtype": outcome.dtype,
        "error": None if outcome.error == float("inf") else outcome.error,
        "allowed": outcome.allowed,
        "passed": outcome.passed,
        "failure": outcome.failure,
        "measured": dict(outcome.measured),
    }


COMMANDS = (
    Command("selftest", "compare every operation of a device with plain torch", _add_arguments, _run),
)


def main() -> int:
    """As a program: the same command line, in the interpreter that runs it."""
    parser = argparse.ArgumentParser(prog="trivet selftest")
    _add_arguments(parser)
    try:
        return run_here(parser.parse_args())
    except TrivetError as error:
        print(f"trivet: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
