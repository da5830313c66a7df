"""Finding Ascend NPUs, on made-up machines. Tables have npu-smi's form and numbers of our own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trivet.contract import DeviceInfo
from trivet.optional_contract import DeviceUser
from trivet_ascend.backend import AscendBackend
from trivet_ascend.detection import family_of
from trivet_ascend.npu_smi import MIB, ChipIds, parse_info, parse_mapping, parse_processes

A2 = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.4        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3321 / 65536         |
+===========================+===============+====================================================+
| 5     910B3               | Alarm         | 93.0        37                0    / 0             |
| 0                         | 0000:C2:00.0  | 12          0    / 0          60211/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 5       0                 | 4711          | python3                  | 57000                   |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
"""
A3 = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 7     Ascend910           | OK            | 170.2       35                0    / 0             |
| 0     14                  | 0000:9E:00.0  | 0           0    / 0          3400 / 65536         |
+---------------------------+---------------+----------------------------------------------------+
| 7     Ascend910           | OK            | -           36                0    / 0             |
| 1     15                  | 0000:9F:00.0  | 0           0    / 0          3200 / 65536         |
+===========================+===============+====================================================+
"""
DUO = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Device              | Bus-Id        | AICore(%)   Memory-Usage(MB)                       |
+===========================+===============+====================================================+
| 2     310P3               | OK            | NA          41                0     / 0            |
| 0     0                   | 0000:06:00.0  | 0           1600 / 44000                           |
+---------------------------+---------------+----------------------------------------------------+
| 2     310P3               | Warning       | NA          40                0     / 0            |
| 1     1                   | 0000:06:00.0  | 0           1500 / 43000                           |
+===========================+===============+====================================================+
"""
A5 = """\
| npu-smi 25.7.rc1                                 Version: 25.7.rc1                                      |
+--------+------------------+---------------+-------------------------------------------------------------+
| NPU ID | Name             | Health        | Power(W)       Temp(C)           Hugepages-Usage(page)      |
|        |                  | Bus-Id        | NPU Util(%)    Memory-Usage(MB)  HBM-Usage(MB)              |
+========+==================+===============+=============================================================+
| 0      | Ascend950PR      | OK            | 276.5          69                0    / 0                   |
|        |                  | 0000:71:00.0  | 99             0    / 0          8824 / 131072              |
+========+==================+===============+=============================================================+
| 1      | Ascend950DT      | Critical      | NA             74                0    / 0                   |
|        |                  | 0000:61:00.0  | -              0    / 0          10769/ 131072              |
+========+==================+===============+=============================================================+
| NPU ID | Process id       | Process name  | Process memory(MB)                                          |
| 0      | 2066378          | pytest        | 360                                                         |
"""
A3_OF_26 = """\
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                             |
+---------------------------+---------------+---------------------------------------------------------------+
| NPU   Name         | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)    |
+===========================+===============+===============================================================+
| 7     Ascend910           | OK            | 172.0                53                      0    / 0         |
| 0     14                  | 0000:81:00.0  | 0                    0    / 0                15503/ 65536     |
+-----------------------------------------------------------------------------------------------------------+
| 7     Ascend910           | OK            | -                    52                      0    / 0         |
| 1     15                  | 0000:83:00.0  | 0                    0    / 0                15242/ 65536     |
+===========================+===============+===============================================================+
| NPU     Chip       | Process id    | Process name       | Process memory(MB)    | Process id in container |
+===========================+===============+===============================================================+
| 7       0                 | 692318        | python3            | 12417                 | NA               |
"""
MAPPING = """\
\tNPU ID                         Chip ID                        Chip Logic ID                  Chip Name
\t0                              0                              1                              Ascend 910B3
\t0                              1                              -                              Mcu
\t5                              0                              0                              Ascend 910B3
\t5                              1                              -                              Mcu
"""
MAPPING_WITH_PHYSICAL_ID = """\
\tNPU ID       Chip ID      Chip Logic ID      Chip Phy-ID      Chip Name
\t7            0            2                  14               Ascend910
\t7            1            3                  15               Ascend910
"""


def _machine(root: Path, info: str, mapping: str = "", manager: bool = True) -> AscendBackend:
    (root / "info").write_text(info)
    (root / "mapping").write_text(mapping)
    tool = root / "npu-smi"
    tool.write_text(f'#!/bin/sh\nif [ "$2" = "-m" ]; then cat {root}/mapping; else cat {root}/info; fi\n')
    tool.chmod(0o755)
    (root / "dev").mkdir()
    if manager:
        (root / "dev/davinci_manager").touch()
    return AscendBackend(root, str(tool))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (A2, [(0, 0, "910B3", "OK", 3321, 65536), (5, 0, "910B3", "Alarm", 60211, 65536)]),
        (A3, [(7, 0, "Ascend910", "OK", 3400, 65536), (7, 1, "Ascend910", "OK", 3200, 65536)]),
        (DUO, [(2, 0, "310P3", "OK", 1600, 44000), (2, 1, "310P3", "Warning", 1500, 43000)]),
        (A3_OF_26, [(7, 0, "Ascend910", "OK", 15503, 65536), (7, 1, "Ascend910", "OK", 15242, 65536)]),
        (A5, [(0, 0, "Ascend950PR", "OK", 8824, 131072), (1, 0, "Ascend950DT", "Critical", 10769, 131072)]),
        ("npu-smi: command failed\n", []),
        (A2.splitlines()[6] + "\n", []),  # cut after a chip's first row
    ],
    ids=["A2", "A3", "310P", "A3 of release 26", "950", "no table", "cut"],
)
def test_table_of_each_product(table: str, expected: list[tuple[object, ...]]) -> None:
    chips = parse_info(table)
    assert [
        (c.npu, c.chip, c.name, c.health, c.used_bytes // MIB, c.total_bytes // MIB) for c in chips
    ] == expected


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (MAPPING, {(0, 0): ChipIds(1, None), (5, 0): ChipIds(0, None)}),
        (MAPPING_WITH_PHYSICAL_ID, {(7, 0): ChipIds(2, 14), (7, 1): ChipIds(3, 15)}),
        ("| NPU ID | Slot ID | Chip ID | Chip Phy-ID | Chip Name |\n", {}),
    ],
    ids=["without Mcu", "with physical id", "no logical id"],
)
def test_logical_ids(table: str, expected: dict[tuple[int, int], ChipIds]) -> None:
    assert parse_mapping(table) == expected


@pytest.mark.parametrize(
    ("product", "family"),
    [
        ("910B1", "A2"),
        ("910B4", "A2"),
        ("Ascend910", "A3"),
        ("310P3", "310P"),
        ("Ascend950PR", "A5"),
        ("910B2C", "A2"),
        ("910B4-1", "A2"),
        ("Ascend910_9392", "A3"),
        ("910ProB", "910A"),
        ("910PremiumA", "910A"),
        ("310B4", "310B"),
        ("310", "310"),
        ("1080X", "unknown"),
    ],
)
def test_family(product: str, family: str) -> None:
    assert family_of(product) == family


def test_devices_stand_in_the_order_of_logical_ids(tmp_path: Path) -> None:
    devices = _machine(tmp_path, A2, MAPPING).probe(10.0)
    assert [(d.index, d.uid, d.arch) for d in devices] == [
        (0, "0000:c2:00.0/0", "A2"),
        (1, "0000:c1:00.0/0", "A2"),
    ]
    assert devices[1].free_bytes == (65536 - 3321) * MIB


def test_an_unhealthy_chip_stays_listed_with_its_health(tmp_path: Path) -> None:
    alarmed, sound = _machine(tmp_path, A2, MAPPING).probe(10.0)
    assert "health is Alarm" in (alarmed.unusable_because or "")
    assert sound.unusable_because is None


def test_a_family_without_our_operations_is_listed_and_refused(tmp_path: Path) -> None:
    device = _machine(tmp_path, DUO).probe(10.0)[0]
    assert "family 310P" in (device.unusable_because or "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("310P3", "Ascend 310P3 is of family 310P, which has attention of its own"),
        ("1080X", "Ascend 1080X is of no family that Trivet knows"),
        ("Ascend950PR", "family A5, whose operations nobody has checked"),
    ],
)
def test_a_chip_that_cannot_be_used_is_named_with_what_can(tmp_path: Path, name: str, words: str) -> None:
    device = _machine(tmp_path, A2.replace("910B3", name)).probe(10.0)[0]
    assert words in (device.unusable_because or "")
    assert "runs on Atlas A2 and A3 (910B, 910C): use one of these, or backend cpu" in (
        device.unusable_because or ""
    )


def test_a_mapping_that_lacks_a_chip_gives_no_number_twice(tmp_path: Path) -> None:
    """Rows count then: the second chip would have the first's number."""
    incomplete = "\n".join(line for line in MAPPING.splitlines() if not line.startswith("\t0"))
    devices = _machine(tmp_path, A2, incomplete).probe(10.0)
    assert [(device.index, device.uid) for device in devices] == [
        (0, "0000:c1:00.0/0"),
        (1, "0000:c2:00.0/0"),
    ]


def test_two_chips_on_one_address_have_two_uids(tmp_path: Path) -> None:
    devices = _machine(tmp_path, DUO).probe(10.0)
    assert len({device.uid for device in devices}) == 2
    assert "bf16" not in devices[0].dtypes


def test_a_container_without_the_manager_node_says_so(tmp_path: Path) -> None:
    device = _machine(tmp_path, A2, MAPPING, manager=False).probe(10.0)[1]
    assert "davinci_manager" in (device.unusable_because or "")


def test_device_nodes_count_where_the_tool_is_missing(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("davinci10", "davinci2", "davinci_manager"):
        (tmp_path / "dev" / name).touch()
    devices = AscendBackend(tmp_path, str(tmp_path / "npu-smi")).probe(10.0)
    assert [device.uid for device in devices] == ["davinci2", "davinci10"]
    assert "npu-smi was not found" in (devices[0].unusable_because or "")


def test_a_chip_without_driver_is_found_on_the_bus_and_a_network_card_is_not(tmp_path: Path) -> None:
    for address, class_code in (("0000:c1:00.0", "0x120000"), ("0000:7d:00.0", "0x020000")):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, value in (("vendor", "0x19e5"), ("device", "0xd802"), ("class", class_code)):
            (folder / name).write_text(value + "\n")
    (device,) = AscendBackend(tmp_path, str(tmp_path / "npu-smi")).probe(10.0)
    assert device.uid == "0000:c1:00.0"
    assert "/dev/davinci" in (device.unusable_because or "")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (A2, [(0, 36, 91.4), (12, 37, 93.0)]),
        (A3, [(0, 35, 170.2), (0, 36, None)]),
        (DUO, [(0, 41, None), (0, 40, None)]),
        (A5, [(99, 69, 276.5), (None, 74, None)]),
    ],
    ids=["A2", "A3", "310P", "950"],
)
def test_load_temperature_and_power_of_each_product(
    table: str, expected: list[tuple[int, int, float | None]], tmp_path: Path
) -> None:
    usage = _machine(tmp_path, table).usage(10.0).values()
    assert [(use.utilisation_percent, use.temperature_c, use.power_w) for use in usage] == expected


def test_usage_is_empty_where_the_tool_is_missing(tmp_path: Path) -> None:
    assert AscendBackend(tmp_path, str(tmp_path / "npu-smi")).usage(1.0) == {}


def test_a_machine_without_npu_has_no_device_and_says_why(tmp_path: Path) -> None:
    backend = AscendBackend(tmp_path, str(tmp_path / "npu-smi"))
    assert backend.probe(10.0) == []
    assert "0x19e5" in backend.absent_because()


def test_versions_are_read_from_the_driver_and_cann(tmp_path: Path) -> None:
    backend = _machine(tmp_path, A2, MAPPING)
    for folder, text in (
        ("usr/local/Ascend/driver", "Version=25.2.0\nascendhal_version=7.35.23\n"),
        ("usr/local/Ascend/cann", "# version: 1.0\nVersion=9.1.0\nversion_dir=cann\n"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "version.info").write_text(text)
    assert backend.probe(10.0)[0].versions == (("driver", "25.2.0"), ("cann", "9.1.0"))


def test_visible_devices_are_ascending_logical_ids(tmp_path: Path) -> None:
    backend = _machine(tmp_path, A2, MAPPING)
    devices: list[DeviceInfo] = backend.probe(10.0)
    assert backend.launch_env(devices[::-1])["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"


def test_probing_imports_no_torch_and_no_vendor_library() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'torch_npu', 'acl', 'te'): sys.modules[name] = None\n"
        "import trivet_ascend\n"
        "backend = trivet_ascend.trivet_backend()\n"
        "backend.probe(1.0); backend.absent_because(1.0); backend.launch_env([])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("table", "users"),
    [
        (A2, {(5, 0): (DeviceUser(4711, 57000 << 20),)}),
        (A3, None),
        (A5, {(0, 0): (DeviceUser(2066378, 360 << 20),)}),
        (A3_OF_26, {(7, 0): (DeviceUser(692318, 12417 << 20),)}),
        (A3_OF_26.replace("| NA  ", "| 77  "), {(7, 0): (DeviceUser(77, 12417 << 20),)}),
    ],
)
def test_who_has_memory_on_a_chip_is_read_as_far_as_the_table_tells(
    table: str, users: dict[tuple[int, int], tuple[DeviceUser, ...]] | None
) -> None:
    assert parse_processes(table) == users


def test_the_use_of_a_chip_names_its_processes(tmp_path: Path) -> None:
    usage = _machine(tmp_path, A2).usage()
    assert [each.users for each in usage.values()] == [(), (DeviceUser(4711, 57000 << 20),)]
    (tmp_path / "info").write_text(A3)
    older = AscendBackend(tmp_path, str(tmp_path / "npu-smi")).usage()
    assert [each.users for each in older.values()] == [None, None]
