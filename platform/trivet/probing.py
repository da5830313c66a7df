"""What a backend's probe looks with: the kernel's list of PCI functions, and vendor tools under a deadline.

A probe imports no vendor library: it would open the device, may end the process, and torch for CUDA and
torch for Ascend cannot live in one. A vendor's tool may hang with its driver, so it is never waited for
without end.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

KILL_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class PCIFunction:
    """One function of a PCI device, from sysfs."""

    address: str  # "0000:c1:00.0"
    device_id: str  # "0xd802"
    class_code: str  # "0x030200": display, 3D controller


def pci_functions(root: Path, vendor: str, class_prefixes: tuple[str, ...]) -> list[PCIFunction]:
    """Functions of a vendor ("0x10de") whose class begins with one of the prefixes, by address."""
    found = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        function = PCIFunction(folder.name, read_text(folder / "device"), read_text(folder / "class"))
        if read_text(folder / "vendor") == vendor and function.class_code.startswith(class_prefixes):
            found.append(function)
    return found


def read_text(path: Path) -> str:
    """The file's text without surrounding blanks; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a vendor's tool printed; `failure` says in a sentence why it is of no use, or is empty."""

    text: str
    failure: str = ""


def run_tool(command: list[str], timeout_s: float) -> ToolOutput:
    """Run a tool with nothing on its standard input. Never raises."""
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        return ToolOutput("", f"{name} was not found")
    except OSError as error:
        return ToolOutput("", f"{name} cannot be started ({error.strerror})")
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return ToolOutput("", f"{name} gave no answer within {timeout_s:g} s{_end(process)}")
    if process.returncode != 0:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
        return ToolOutput(text, f"{name} ended with code {process.returncode}: {first}")
    return ToolOutput(text)


def _end(process: subprocess.Popen[str]) -> str:
    """Kill a tool; what waits inside a driver cannot be killed and is left behind, which is said."""
    process.kill()
    try:
        process.communicate(timeout=KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        return f" and cannot be killed (process {process.pid}): its driver hangs"
    return ""
