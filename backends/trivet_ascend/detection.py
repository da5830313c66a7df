"""Finds Ascend NPUs without a library: npu-smi, else device nodes, else the PCI bus."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trivet.probing import pci_functions, read_text, run_tool
from trivet_ascend.npu_smi import Chip, ChipIds, parse_info, parse_mapping

PCI_VENDOR = "0x19e5"
PCI_CLASSES = ("0x12",)  # processing accelerators; the vendor also makes network and management chips
MANAGER_NODE = "dev/davinci_manager"
CANN_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest/runtime")


@dataclass(frozen=True, slots=True)
class Npu:
    """What could be found out about one chip; `fault` is empty where nothing speaks against it."""

    index: int  # logical id
    uid: str
    name: str
    family: str
    total_bytes: int = 0
    free_bytes: int = 0
    fault: str = ""
    physical_id: int | None = None  # of /dev/davinciN


def family_of(product: str) -> str:
    """The hardware family of a product name; all of 910B1 to 910B4 are A2."""
    for pattern, family in (
        (r"910B", "A2"),
        (r"910_93|Ascend910$|910C", "A3"),
        (r"310P", "310P"),
        (r"310B", "310B"),
        (r"910A|910$|910Pr", "910A"),  # 910ProB, 910PremiumA
        (r"310$", "310"),
        (r"950", "A5"),
    ):
        if re.search(pattern, product):
            return family
    return "unknown"


def memory_bandwidth(product: str, family: str) -> float | None:
    """Bytes/s at which a chip (of A3: a die) reads its memory; None where no figure is known.

    npu-smi does not tell. These are of public performance models, in agreement with the clock that it tells
    for a 910B3: 1.6 GHz, twice a cycle, four stacks of 1,024 bits make 1.64 TB/s. A 910B4 has two stacks.
    Never measured by us.
    """
    if family == "A3" or re.search(r"910B[123]$", product):
        return 1.6e12
    return 0.8e12 if re.search(r"910B4$", product) else None


def find_npus(root: Path, npu_smi: str, timeout_s: float) -> list[Npu]:
    """All chips of this machine by logical id, faulty ones with the reason."""
    output = run_tool([npu_smi, "info"], timeout_s)
    chips = parse_info(output.text)
    if chips:
        mapping = parse_mapping(run_tool([npu_smi, "info", "-m"], timeout_s).text)
        rows = {(chip.npu, chip.chip): ChipIds(row, None) for row, chip in enumerate(chips)}
        ids = mapping if mapping.keys() >= rows.keys() else rows  # half of both would give a number twice
        found = [_npu(root, chip, ids[chip.npu, chip.chip]) for chip in chips]
        return sorted(found, key=lambda npu: npu.index)
    reason = output.failure or "npu-smi printed no chip"
    nodes = sorted(
        int(node.name.removeprefix("davinci"))
        for node in (root / "dev").glob("davinci*")
        if node.name.removeprefix("davinci").isdigit()
    )
    if nodes:
        fault = (
            f"its product and memory are unknown: {reason}; mount /usr/local/bin/npu-smi and /usr/local/dcmi"
        )
        return [
            Npu(i, f"davinci{node}", "Ascend NPU", "unknown", fault=fault) for i, node in enumerate(nodes)
        ]
    on_bus = pci_functions(root, PCI_VENDOR, PCI_CLASSES)
    fault = (
        f"the Ascend driver is not loaded or not visible here ({reason}; no /dev/davinci*); install it, or "
    )
    fault += "pass /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc to the container"
    return [
        Npu(index, function.address, f"Ascend PCI device {function.device_id}", "unknown", fault=fault)
        for index, function in enumerate(on_bus)
    ]


def _npu(root: Path, chip: Chip, ids: ChipIds) -> Npu:
    fault = ""
    if chip.health != "OK":
        fault = f"its health is {chip.health}; see npu-smi info -t health -i {chip.npu}"
    elif not (root / MANAGER_NODE).exists():
        fault = "/dev/davinci_manager is missing; pass it to the container"
    return Npu(
        index=ids.logical,
        physical_id=ids.physical,
        uid=chip.uid,
        name=f"Ascend {chip.name.removeprefix('Ascend')}",
        family=family_of(chip.name),
        total_bytes=chip.total_bytes,
        free_bytes=max(0, chip.total_bytes - chip.used_bytes),
        fault=fault,
    )


def find_versions(root: Path) -> tuple[tuple[str, str], ...]:
    """Driver, firmware and CANN, as far as their version files are there."""
    files = [
        ("driver", root / "usr/local/Ascend/driver/version.info"),
        ("firmware", root / "usr/local/Ascend/firmware/version.info"),
        *(("cann", root / folder / "version.info") for folder in CANN_FOLDERS),
    ]
    found: dict[str, str] = {}
    for name, file in files:
        match = re.search(r"^Version\s*=\s*\[?([^\s\]:]+)", read_text(file), re.MULTILINE)
        if match and name not in found:
            found[name] = match.group(1)
    return tuple(found.items())
