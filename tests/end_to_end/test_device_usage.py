"""What a vendor's tool tells of a device reaches `/metrics`, the API and `trivet devices`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from conftest import Site

# One chip of an Atlas A2, in npu-smi's form.
TABLE = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.4        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 25          0    / 0          3321 / 65536         |
+===========================+===============+====================================================+
"""


def test_load_memory_temperature_and_power_of_an_npu_are_told(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table").write_text(TABLE)
    tool = tmp_path / "npu-smi"
    tool.write_text(f'#!/bin/sh\n[ "$*" = info ] && exec cat {tmp_path}/table\nexit 1\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    site.serve()

    def told() -> dict[str, float]:
        """Figures of the NPU."""
        text = httpx2.get(f"{site.base_url}/metrics").text
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("backend") == "ascend"
        }

    site.wait_for("the NPU is in /metrics", lambda: "trivet:device_power_watts" in told())
    found = told()
    assert found["trivet:device_utilisation_ratio"] == 0.25
    assert found["trivet:device_memory_used_bytes"] == 3321 << 20
    assert found["trivet:device_temperature_celsius"] == 36
    assert found["trivet:device_power_watts"] == 91.4
    with site.client() as client:
        (npu,) = (device for device in client.devices() if device.kind == "ascend")
    assert (npu.utilisation_percent, npu.temperature_c, npu.power_w) == (25, 36, 91.4)
    (listed,) = (
        each for each in json.loads(site.run("devices", "--json").stdout) if each["kind"] == "ascend"
    )
    assert listed["total_bytes"] == 65536 << 20
    assert listed["usage"]["temperature_c"] == 36
