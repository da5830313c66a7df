"""Reads the tables of `npu-smi info` and `npu-smi info -m`.

The tables are made for people and differ between products and releases (A2, A3, 310P, 950; wider in 26.0).
What holds for all: cells stand between bars, a chip takes two rows, the second has its PCI address, its
memory is the last "used / total" there, and a health other than OK stays in the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trivet.optional_contract import DeviceUser

MIB = 1 << 20
_USED_TOTAL = re.compile(r"(\d+)\s*/\s*(\d+)")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip of `npu-smi info`."""

    npu: int
    chip: int
    name: str  # "910B4", "Ascend910", "310P3"
    health: str  # "OK", "Warning", "Alarm", ...
    bus_id: str  # "0000:C1:00.0"
    used_bytes: int
    total_bytes: int
    utilisation_percent: int | None = None  # of the AI cores
    temperature_c: int | None = None
    power_w: float | None = (
        None  # None where the table has "NA" or "-": an A3 tells a card's at its first die
    )

    @property
    def uid(self) -> str:
        """Stable over reboots; two chips of one card may share a PCI address."""
        return f"{self.bus_id.lower()}/{self.chip}"


@dataclass(frozen=True, slots=True)
class ChipIds:
    """Three numberings that may all differ: npu and chip in the tool, these two elsewhere."""

    logical: int  # what ASCEND_RT_VISIBLE_DEVICES and torch-npu count
    physical: int | None  # /dev/davinciN, on the host


def parse_info(text: str) -> list[Chip]:
    """The chips in the table's order. Rows that are not understood are skipped."""
    chips: list[Chip] = []
    first: _FirstRow | None = None  # the chip's first row, while the second is awaited
    for line in text.splitlines():
        cells = _cells(line)
        if not any(_BUS_ID.search(cell) for cell in cells):
            first = _first_row(cells)
        elif first is not None:
            chip = _chip(first, cells)
            chips += [chip] if chip else []
            first = None
    return chips


@dataclass(frozen=True, slots=True)
class _FirstRow:
    """A chip's name and state."""

    npu: int
    name: str
    health: str
    power: str
    temperature: str


def _first_row(cells: list[str]) -> _FirstRow | None:
    """Number and product share a cell, or have one each (950); then health; then power and temperature."""
    words = " ".join(cells[:2]).split() if len(cells) > 2 and cells[0].isdigit() else cells[:1]
    if len(cells) < 3 or not re.fullmatch(r"\d+\s+\S*\d\S*", " ".join(words)):
        return None
    health, *rest = cells[1:] if words == cells[:1] else cells[2:]
    numbers = [*" ".join(rest).split()[:2], "", ""]
    npu, name = " ".join(words).split()
    return _FirstRow(int(npu), name, health, numbers[0], numbers[1])


def _chip(first: _FirstRow, second: list[str]) -> Chip | None:
    """The second row: chip number (the 950 has one chip and no number), address, load and memory."""
    memory = _USED_TOTAL.findall(second[-1])
    if not memory:
        return None
    used, total = memory[-1]
    number = second[0].split()
    load = second[-1].split()[0]
    return Chip(
        npu=first.npu,
        chip=int(number[0]) if number and number[0].isdigit() else 0,
        name=first.name,
        health=first.health,
        bus_id=next(cell for cell in second if _BUS_ID.search(cell)),
        used_bytes=int(used) * MIB,
        total_bytes=int(total) * MIB,
        utilisation_percent=int(load) if load.isdigit() else None,
        temperature_c=int(first.temperature) if first.temperature.isdigit() else None,
        power_w=float(first.power) if re.fullmatch(r"\d+(\.\d+)?", first.power) else None,
    )


def parse_processes(text: str) -> dict[tuple[int, int], tuple[DeviceUser, ...]] | None:
    """By (NPU, chip), who has memory there, from the second table; None where there is none.

    In a container the column for it has the pids that are known there.
    """
    columns: list[str] = []
    users: dict[tuple[int, int], tuple[DeviceUser, ...]] = {}
    for line in text.splitlines():
        cells = _cells(line)
        if "Process id" in cells:
            columns = cells
        elif columns and len(cells) == len(columns):
            place = [int(word) for word in cells[0].split() if word.isdigit()]
            row = dict(zip(columns, cells, strict=True))
            inside, pid = row.get("Process id in container", ""), row["Process id"]
            memory = row.get("Process memory(MB)", "")
            if place and pid.isdigit():
                size_bytes = int(memory) * MIB if memory.isdigit() else None
                key = (place[0], place[1] if len(place) > 1 else 0)
                user = DeviceUser(int(inside if inside.isdigit() else pid), size_bytes)
                users[key] = (*users.get(key, ()), user)
    return users if columns else None


def parse_mapping(text: str) -> dict[tuple[int, int], ChipIds]:
    """(NPU, chip) to the chip's other numbers, from `npu-smi info -m`.

    Columns are found by their heading, for they vary; management chips (Mcu) have no logical id.
    """
    columns: list[str] = []
    ids: dict[tuple[int, int], ChipIds] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"\s{2,}|\|", line.strip()) if cell.strip()]
        if "NPU ID" in cells:
            columns = cells
            continue
        row = dict(zip(columns, cells, strict=False))
        values = [row.get(column, "") for column in ("NPU ID", "Chip ID", "Chip Logic ID")]
        if all(value.isdigit() for value in values):
            npu, chip, logical = (int(value) for value in values)
            physical = row.get("Chip Phy-ID", "")
            ids[npu, chip] = ChipIds(logical, int(physical) if physical.isdigit() else None)
    return ids


def _cells(line: str) -> list[str]:
    return (
        [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
    )
