"""Loads a model in a process of its own and has it answer one token."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from trivet.config import environment_of_home
from trivet.errors import ModelFilesError
from trivet_registry.child_process import run_child

TIMEOUT_S = 1800.0  # large weights from a slow disk
_TRIVET = "import sys; from trivet.cli import main; sys.exit(main())"
_SMALL = ("max_model_len=64", "max_num_seqs=1", "num_gpu_blocks_override=16")


def answers_one_token(path: Path, home: Path, check: Callable[[], None] = lambda: None) -> None:
    """On the best device that this interpreter reaches, with the settings of the site and little memory.

    Args: check: called twice a second; it may raise to end the test.

    Raises: ModelFilesError.
    """
    settings = [part for setting in _SMALL for part in ("--set", setting)]
    command = [*(sys.executable, "-c", _TRIVET, "run", str(path)), *settings]
    command += ["--prompt", "Hello", "--raw", "--max-tokens", "1", "--json"]
    try:
        code, said = run_child(command, TIMEOUT_S, check, environment_of_home(home))
    except TimeoutError:
        raise ModelFilesError(f"the model did not answer one token within {TIMEOUT_S:.0f} s") from None
    if code != 0:
        lines = said.strip().splitlines()
        raise ModelFilesError(
            f"the model did not answer one token: {' '.join(lines[-2:])[-500:] or code}; it was not "
            "registered"
        )
