"""Plants the faults of `mutants.py`, each of which its test has to find.

    tests/run cuda mutants [NAME...]

Each is written into a copy of the package, and its test runs over it in a process of its own; exit code 1
where one passes. The processes are copies of one that has imported what the tests need, but nothing of
`trivet_cuda`; where the fault is in `trivet` itself, that is forgotten again.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from mutants import MUTANTS, PACKAGES, ROOT, Mutant

TIMEOUT_S = 120
ONE_AT_A_TIME = threading.Lock()  # who starts a process asks all others for their exit codes, told once each
# What each test would import anew: most of its time.
PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "triton",
    "triton.language",
    "triton.runtime.interpreter",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "numpy",
    "gguf",
    "pytest",
    "pytest_timeout",
    "trivet.commands.selftest",
    "trivet.contract_suite.driver",
    "trivet.contract_suite.engine_runs",
    "trivet.contract_suite.gguf_oracle",
    "trivet.contract_suite.nothing_waits",
    "trivet.contract_suite.tiny_gguf",
    "trivet.contract_suite.tiny_models",
    "trivet.engine.core",
    "trivet.models.decoder",
    "trivet.runners.device_runner",
    "trivet.runners.op_check",
    "trivet.runners.ranks",
]
RAN = 100  # added to pytest's exit code: 1 is also that of a process which did not come so far
PASSED, FAILED = RAN, RAN + 1  # others say that no test ran


def run_test(test: str, folder: str, package: str) -> None:
    """In a process of its own, over `package` in `folder`; its exit code is RAN and pytest's."""
    import pytest

    log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(ROOT)
    for name in list(sys.modules):
        if name.partition(".")[0] == package:
            del sys.modules[name]
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = f"{folder}:{os.environ.get('PYTHONPATH', '')}"  # of processes that it starts
    # No plugin but the one of timeouts, and no words of asserts, for which modules would be rewritten.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = ["-o", "addopts=--import-mode=importlib", "--assert=plain", "-x", "-q"]
    options += ["-p", "no:cacheprovider", "-p", "pytest_timeout", f"--timeout={TIMEOUT_S}"]
    sys.exit(RAN + pytest.main([*options, test]))


def is_found(mutant: Mutant, context: ForkServerContext) -> bool:
    """Whether its test fails. Raises: ValueError where it cannot be planted, SystemExit if no test runs."""
    package, inner = mutant.place
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGES[package], Path(folder, package))  # with what is compiled of it
        file = Path(folder, package, inner)
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()
        file.write_text(mutant.planted(file.read_text()))
        process = context.Process(target=run_test, args=(mutant.test, folder, package))
        with ONE_AT_A_TIME:
            process.start()
        connection.wait([process.sentinel])
        with ONE_AT_A_TIME:
            process.join()
        code = process.exitcode
        if code is None or (code >= 0 and code not in (PASSED, FAILED)):
            log = Path(folder, "log")
            words = log.read_text()[-3000:] if log.exists() else "see above"
            raise SystemExit(f"{mutant.name}: its test did not run, code {code}: {words}")
    return code != PASSED  # a signal, too: an access beyond memory


def controls(mutants: Sequence[Mutant]) -> list[Mutant]:
    """A test of each folder over what is sound: where it fails, a fault that is found says nothing."""
    first = {Path(mutant.test.partition("::")[0]).parent: mutant for mutant in reversed(mutants)}
    return [replace(mutant, name=f"without {mutant.name}", after=mutant.before) for mutant in first.values()]


def main() -> int:
    """Exit code 1 where a fault is not found."""
    wanted = [mutant for mutant in MUTANTS if mutant.name in sys.argv[1:] or not sys.argv[1:]]
    if unknown := set(sys.argv[1:]) - {mutant.name for mutant in wanted}:
        raise SystemExit(f"there is no fault {', '.join(sorted(unknown))} in tests/cuda/mutants.py")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    survivors = 0
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        sound = controls(wanted)
        for mutant, fails in zip(sound, pool.map(lambda each: is_found(each, context), sound), strict=True):
            if fails:
                raise SystemExit(f"{mutant.test} fails {mutant.name}, too")
        for mutant, found in zip(
            wanted, pool.map(lambda mutant: is_found(mutant, context), wanted), strict=True
        ):
            print(f"{'found' if found else 'SURVIVED':8} {mutant.name}", flush=True)
            survivors += not found
    print(f"{len(wanted) - survivors} faults found, {survivors} not")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
