"""For all tests: how many run at once, on how many threads, and that Ctrl-C counts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

MAX_WORKERS = 4  # each may hold torch, transformers and a real model: 3 GB

# Before torch is imported, here and in every process that a test starts: the workers have the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts this in the background ignores it, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before any test module imports them: their asserts explain themselves like those of test modules.
pytest.register_assert_rewrite("trivet.contract_suite.cases")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: a worker a CPU, and none for a single file, which would keep one of them busy.

    xdist's own count leaves out hyperthreads, and so halves a small virtual machine.
    """
    files = {Path(argument.partition("::")[0]) for argument in config.args}
    if len(files) == 1 and files.pop().is_file():
        return 0
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))
