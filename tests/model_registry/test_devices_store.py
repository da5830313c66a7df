from __future__ import annotations

from dataclasses import replace

from trivet.contract import DeviceInfo
from trivet.engine.ledger import Holding, Ledger
from trivet.optional_contract import DeviceUsage
from trivet_registry.database import Database
from trivet_registry.devices_store import list_devices, save_devices

CPU = DeviceInfo(
    kind="cpu",
    index=0,
    uid="host",
    name="a CPU",
    arch="x86-64",
    total_bytes=10,
    free_bytes=5,
    dtypes=frozenset({"f32", "bf16"}),
    versions=(("kernel", "6"),),
)


def test_a_probe_replaces_what_was_known(db: Database) -> None:
    with db.session() as session:
        save_devices(session, [CPU, replace(CPU, kind="null")])
        held = Ledger([Holding("qwen", "i", "cpu", ("host",), 2, is_taken=True)])
        save_devices(session, [replace(CPU, free_bytes=3)], held)
    with db.reading() as session:
        (device,) = list_devices(session)
    assert (device.kind, device.uid, device.free_bytes, device.reserved_bytes) == ("cpu", "host", 3, 2)
    assert (device.dtypes, device.versions) == (["bf16", "f32"], {"kernel": "6"})


def test_an_unusable_device_keeps_its_reason(db: Database) -> None:
    with db.session() as session:
        save_devices(session, [replace(CPU, unusable_because="no driver")])
        assert list_devices(session)[0].unusable_because == "no driver"


def test_of_use_what_is_known_is_kept(db: Database) -> None:
    use = DeviceUsage(used_bytes=7, total_bytes=10, utilisation_percent=40, temperature_c=36)
    with db.session() as session:
        save_devices(session, [CPU, replace(CPU, kind="null")], usage={("cpu", "host"): use})
    with db.reading() as session:
        cpu, null = list_devices(session)
    assert (cpu.used_bytes, cpu.utilisation_percent, cpu.temperature_c, cpu.power_w) == (7, 40, 36, None)
    assert (null.used_bytes, null.utilisation_percent, null.temperature_c, null.power_w) == (None,) * 4
