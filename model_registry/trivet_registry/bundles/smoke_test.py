"""Loads a model in a process of its own and has it answer one token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trivet.config import inherited_environment
from trivet.errors import ModelFilesError

TIMEOUT_S = 1800.0  # large weights from a slow disk
_TRIVET = "import sys; from trivet.cli import main; sys.exit(main())"
_SMALL = ("max_model_len=64", "max_num_seqs=1", "num_gpu_blocks_override=16")


def answers_one_token(path: Path) -> None:
    """On the device that a launch would choose, with little memory. Raises: ModelFilesError."""
    settings = [part for setting in _SMALL for part in ("--set", setting)]
    command = [*(sys.executable, "-c", _TRIVET, "run", str(path)), *settings]
    command += ["--prompt", "Hello", "--raw", "--max-tokens", "1", "--json"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=inherited_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelFilesError(f"the model did not answer one token within {error.timeout:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ModelFilesError(
            f"the model did not answer one token: {' '.join(lines[-2:])[-500:] or done.returncode}; it "
            "was not registered"
        )
