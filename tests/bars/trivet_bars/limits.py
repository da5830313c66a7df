"""The limits of the machine, measured by `limits.cpp`."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("limits.cpp")
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Of so many threads; 0 where this CPU has no such instruction, or the probe does not know it."""

    read_gb_per_s: float
    int8_gop_per_s: float
    bf16_gflop_per_s: float


class NoCompiler(RuntimeError):
    """There is no g++, or it does not build the probe."""


def measure_limits(threads: int) -> Limits:
    """Build the probe and run it. Raises: NoCompiler; subprocess.CalledProcessError."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise NoCompiler("the limits of the machine are measured by a C++ program and there is no g++")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        flags = ["-O3", "-march=native", "-std=c++17", "-pthread", "-w"]  # GCC 12 warns of its own headers
        built = subprocess.run(
            [compiler, *flags, str(SOURCE), "-o", str(program)], capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            raise NoCompiler(f"g++ does not build {SOURCE.name}: {built.stderr.strip()[:500]}")
        ran = subprocess.run(
            [str(program), str(threads)], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
    return Limits(**json.loads(ran.stdout))
