"""A start whose ranks never meet, in a process of its own: `python -m ... MODEL OPENER`.

What waits inside torch for a rank that is missing cannot be ended there, and the next process group of the
same process would be numbered after it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from trivet_ascend_emulated import openers
from trivet_ascend_emulated.backend import EmulatedAscend

from trivet.contract import RunnerConfig
from trivet.errors import TrivetError
from trivet.models.model_files import open_model
from trivet.runners.ranks import TensorParallelRunner


def main() -> None:
    """Prints the reason, and how many of the ranks' processes are still there."""
    files, backend = open_model(Path(sys.argv[1])), EmulatedAscend()
    assert files.spec is not None
    config = RunnerConfig(dtype="f32", max_model_len=512, num_blocks=20, tensor_parallel=4)
    devices, popen, started = backend.probe(1.0), subprocess.Popen, list[Any]()

    def start(*arguments: Any, **settings: Any) -> Any:
        started.append(popen(*arguments, **settings))
        return started[-1]

    plan = backend.plan(files.spec, files.weights, config, devices)
    subprocess.Popen = start  # type: ignore[misc,assignment]
    try:
        TensorParallelRunner(files.spec, config, plan, devices, getattr(openers, sys.argv[2]))
    except TrivetError as error:
        alive = sum(process.poll() is None for process in started)
        print(json.dumps([type(error).__name__, str(error), len(started), alive]))


if __name__ == "__main__":
    main()
