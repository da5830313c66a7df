"""Reads a cubin: registers, stack, spills and shared memory, by NVIDIA's own tools in Triton's wheel.

The cubin that would run is read, not what another assembler makes of the PTX, and a tool that prints
something unknown is an error: "no spills found" must not mean "nothing was looked at".
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
# Bytes of shared memory that one program can have (CUDA C programming guide, compute capabilities).
SHARED_BYTES = {80: 166912, 86: 101376, 87: 166912, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
MAX_REGISTERS = 255


class UnreadableCubin(Exception):
    """The tools did not say what they say of every cubin."""


@dataclass(frozen=True)
class Usage:
    """What a kernel takes."""

    registers: int
    stack_bytes: int
    local_bytes: int  # beside the stack
    shared_bytes: int

    def faults(self, arch: int) -> list[str]:
        """What speaks against launching it on `arch`."""
        found = []
        if self.stack_bytes or self.local_bytes:
            found.append(f"spills: {self.stack_bytes} bytes of stack, {self.local_bytes} of local memory")
        if self.shared_bytes > SHARED_BYTES[arch]:
            found.append(f"{self.shared_bytes} bytes of shared memory, and there are {SHARED_BYTES[arch]}")
        if not 0 < self.registers <= MAX_REGISTERS:
            found.append(f"{self.registers} registers")
        return found


def read_usage(cubin: bytes, shared_bytes: int) -> Usage:
    """`shared_bytes` is the compiler's own number: dynamic memory does not stand in a cubin.

    Raises: UnreadableCubin.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _output("cuobjdump", "-res-usage", file.name)
    match = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage)
    if match is None:
        raise UnreadableCubin(f"cuobjdump names no registers: {usage[-300:]!r}")
    return Usage(int(match[1]), int(match[2]), int(match[3]), shared_bytes)


def _output(tool: str, *arguments: str) -> str:
    done = subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnreadableCubin(f"{tool} failed with {done.returncode}: {(done.stdout + done.stderr)[-300:]!r}")
    return done.stdout + done.stderr
