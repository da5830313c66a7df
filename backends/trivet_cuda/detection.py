"""Finds NVIDIA GPUs: by NVML, else nvidia-smi, else the driver's /proc tree, else the PCI bus.

Each source knows less than the one before and is there to say why the one before failed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trivet.probing import pci_functions, read_text, run_tool
from trivet_cuda.nvml import Gpu, find_by_nvml

PCI_VENDOR = "0x10de"
PCI_CLASSES = ("0x03",)  # display controllers; the bus also shows their audio and USB functions
MIB = 1 << 20
FIELDS = (
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "compute_cap",
    "memory.total",
    "memory.free",
    "driver_version",
    "mig.mode.current",
)


def find_gpus(
    root: Path, nvidia_smi: str, timeout_s: float, load_nvml: Callable[[], Any]
) -> tuple[list[Gpu], str]:
    """All GPUs of this machine in the order of the driver, faulty ones with the reason; or none and why.

    A driver that has lost its GPUs counts none without an error: then the next source is asked, too.

    Args:
        load_nvml: gives the module pynvml. Raises: ImportError.
    """
    by_library, no_library = find_by_nvml(load_nvml)
    if by_library:
        return by_library, ""
    output = run_tool(
        [nvidia_smi, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"], timeout_s
    )
    lines = [] if output.failure else output.text.splitlines()
    if by_tool := [gpu for line in lines if (gpu := _parse_line(line)) is not None]:
        return by_tool, ""
    no_tool = output.failure or f"nvidia-smi lists no GPU ({lines[0].strip() if lines else 'no line'})"
    told = f"{no_library or 'NVML counts no GPU'}; {no_tool}"
    driver = _driver_version(root)
    if from_driver := _from_driver(root, driver, told):
        return from_driver, ""
    on_bus = pci_functions(root, PCI_VENDOR, PCI_CLASSES)
    if not on_bus:
        return [], f"none of PCI vendor {PCI_VENDOR} on the bus; {told}"
    fault = (
        f"the NVIDIA driver {driver} is loaded and has not taken it over ({told}); its lines in the kernel's "
        "log (dmesg | grep NVRM) tell why"
        if driver
        else f"the NVIDIA driver is not loaded or not visible here ({told}); install it, or start the "
        "container with --gpus all"
    )
    return [
        Gpu(index, function.address, f"NVIDIA PCI device {function.device_id}", driver=driver, fault=fault)
        for index, function in enumerate(on_bus)
    ], ""


def _parse_line(line: str) -> Gpu | None:
    """One line of nvidia-smi's CSV; None for a line that is none ("No devices were found")."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(FIELDS) or not cells[0].isdigit():
        return None
    index, uuid, _, name, capability, total, free, driver, mig = cells
    fault = ""
    if mig == "Enabled":
        fault = (
            "MIG is enabled on it and nvidia-smi's table has no instances; install nvidia-ml-py, which lists "
            "them, or disable MIG with nvidia-smi -mig 0"
        )
    elif not total.isdigit():
        fault = f"its driver reports {total!r} for its memory; see nvidia-smi -q for the state of the GPU"
    return Gpu(
        index=int(index),
        uid=uuid,
        name=name,
        compute_capability=capability if capability.replace(".", "").isdigit() else "",
        total_bytes=_mib(total),
        free_bytes=_mib(free),
        driver=driver,
        fault=fault,
    )


def _mib(cell: str) -> int:
    """A cell in MiB; "[N/A]" and "ERR!" count as 0."""
    return int(cell) * MIB if cell.isdigit() else 0


def _driver_version(root: Path) -> str:
    """Of the loaded kernel module; empty where there is none."""
    words = read_text(root / "proc/driver/nvidia/version").split("Kernel Module")
    return words[1].split()[0] if len(words) > 1 and words[1].split() else ""


def _from_driver(root: Path, driver: str, told: str) -> list[Gpu]:
    """The loaded kernel module's own list, /proc/driver/nvidia.

    Args:
        told: what those said that know a GPU's memory.
    """
    gpus = []
    for index, folder in enumerate(sorted((root / "proc/driver/nvidia/gpus").glob("*"))):
        fields: dict[str, str] = {}
        for line in read_text(folder / "information").splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        uid = fields.get("GPU UUID", "")
        gpus.append(
            Gpu(
                index=index,
                uid=uid if uid.startswith("GPU-") and "?" not in uid else folder.name,
                name=fields.get("Model", "NVIDIA GPU"),
                driver=driver,
                fault=f"its memory is unknown: {told}; install nvidia-ml-py or nvidia-smi of the driver's "
                "version, and in a container see that /dev/nvidia* is there (--gpus all)",
            )
        )
    return gpus
