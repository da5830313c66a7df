"""A plan for other hosts is of the devices that the supervisor saw there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from trivet.contract import DeviceInfo
from trivet_registry.devices_store import save_devices
from trivet_web.engines.known_devices import KnownDevices

if TYPE_CHECKING:
    from conftest import Site


def test_devices_come_back_as_they_were_saved(site: Site) -> None:
    far = DeviceInfo(
        "cuda", 1, "b/GPU-1", "H200", "sm_90", 9, 5, frozenset({"bf16"}), (("driver", "1"),), None, "b"
    )
    here = DeviceInfo("cpu", 0, "MIG-1/1/0", "a CPU", "x", 2, 1, frozenset(), (), "too slow")
    with site.database.session() as session:
        save_devices(session, [far, here])
    known = KnownDevices(site.database)
    assert known.probe("cuda", cast("Any", None), 1.0) == [far]
    assert known.probe("cpu", cast("Any", None), 1.0) == [here]
    assert known.bandwidth("cuda", cast("Any", None), far, 1.0) is None
