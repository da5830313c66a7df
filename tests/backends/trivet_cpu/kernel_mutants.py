"""Shows that the kernels' tests find faults: each mutant is one changed line, and some test must fail.

A mutant lives in a copy of the backend, with a kernel cache of its own; the checkout is not touched. The copy
is compiled with -O1, for the best level of this CPU alone. Run by `tests/run mutants [NAME...]`; ends with 1
where a mutant survives or no longer fits the source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[3]
TESTS = Path(__file__).parent
TIMEOUT_S = 240.0  # a mutant may wait for ever: that is a find, too

TESTS_OF = MappingProxyType(
    {
        "adapters": ("test_native_adapters.py",),
        "attention": ("test_native_attention.py",),
        "pool": ("test_pool.py",),
        "products": ("test_native_kernels.py",),
        "sampler": ("test_native_sampler.py",),
        "step": ("test_native_functions.py", "test_native_step.py"),
    }
)


@dataclass(frozen=True)
class Mutant:
    """One line of one kernel source, and the tests that have to find its change."""

    name: str
    file: str
    old: str
    new: str
    tests: str  # a key of TESTS_OF


def read_mutants() -> dict[str, Mutant]:
    """By name, in the order of the file."""
    table = tomllib.loads((TESTS / "kernel_mutants.toml").read_text())
    return {entry["name"]: Mutant(**entry) for entry in table["mutant"]}


def _copy(folder: Path) -> None:
    for root in ("platform", "backends"):
        shutil.copytree(ROOT / root, folder / root, ignore=shutil.ignore_patterns("__pycache__"))
    compiler = folder / "backends/trivet_cpu/kernel_compiler.py"
    compiler.write_text(compiler.read_text().replace('"-O3"', '"-O1"'))


def _run(folder: Path, tests: Sequence[str], level: str) -> str:
    """What pytest says; "" where all tests pass."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'platform'}:{folder / 'backends'}",
        "HOME": str(folder / "home"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    leaves = [f"{TESTS / name}" for name in tests]
    # The library of the best level alone is built: tests of others are left out by their parameter.
    others = [name for name in ("avx512_bf16", "avx512-", "avx2", "portable") if name.strip("-") != level]
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header",
        "-k", f"not ({' or '.join(others)})", "--rootdir", str(ROOT), *leaves,
    ]  # fmt: skip
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S:.0f} s"
    if ended.returncode == 0:
        return ""
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failed or [f"exit code {ended.returncode}"])[0]


def _try(mutant: Mutant, level: str) -> tuple[bool, str]:
    """Whether it was found, and by what."""
    with tempfile.TemporaryDirectory(prefix="trivet-mutant-") as scratch:
        folder = Path(scratch)
        _copy(folder)
        source = folder / "backends/trivet_cpu/kernels" / mutant.file
        text = source.read_text()
        if text.count(mutant.old) != 1:
            return (
                False,
                f"its line stands {text.count(mutant.old)} times in {mutant.file}: bring it up to date",
            )
        source.write_text(text.replace(mutant.old, mutant.new))
        found = _run(folder, TESTS_OF[mutant.tests], level)
        return bool(found), found or "SURVIVED"


def main(names: Sequence[str]) -> int:
    """The number of mutants that were not found, at most 1, as exit code."""
    from trivet_cpu.host import Host
    from trivet_cpu.kernel_build import levels_of

    level = levels_of(Host().arch())[0]
    known = read_mutants()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"there is no mutant {unknown[0]}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="trivet-mutant-") as scratch:
        _copy(Path(scratch))
        broken = _run(Path(scratch), [name for names in TESTS_OF.values() for name in names], level)
    if broken:
        print(f"the tests fail without any mutant: {broken}", file=sys.stderr)
        return 2
    num_missed = 0
    for mutant in [known[name] for name in names or known]:
        if mutant.name.startswith("amx-") and level != "amx":
            print(f"skipped  {mutant.name}  this CPU has no AMX")
            continue
        started_s = time.monotonic()
        is_found, by = _try(mutant, level)
        num_missed += not is_found
        print(
            f"{'found' if is_found else 'MISSED'}  {mutant.name}  {time.monotonic() - started_s:.0f} s  {by}",
            flush=True,
        )
    print(f"{num_missed} not found")
    return min(1, num_missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
