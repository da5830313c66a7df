"""A plan for other hosts is of the devices that the supervisor saw there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from trivet.contract import DeviceInfo
from trivet.prober import Prober
from trivet_registry.devices_store import save_devices
from trivet_supervisor.launchers.local import LocalLauncher
from trivet_web import web_process
from trivet_web.engines.known_devices import KnownDevices
from trivet_web.web_process import WebProcess

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


class OnHosts:
    """A launcher with hosts of its own."""

    def hosts(self) -> dict[str, str]:
        return {}

    devices = usage = hosts


@pytest.mark.parametrize(
    ("launcher", "kind"), [(OnHosts(), KnownDevices), (LocalLauncher(Path()), Prober)], ids=["hosts", "here"]
)
def test_a_plan_is_of_this_host_unless_its_launcher_has_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, launcher: object, kind: type[Prober]
) -> None:
    plugins = SimpleNamespace(launcher=lambda settings: launcher)
    monkeypatch.setattr(web_process, "load_plugins", lambda: plugins)
    with closing(WebProcess(msgspec.structs.replace(site.settings, launcher="of-a-plugin"))) as process:
        assert type(process.prober) is kind
