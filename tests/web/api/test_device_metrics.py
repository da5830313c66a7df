"""Devices in /metrics: what is known of each, and nothing of what is long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text, update

from trivet.contract import DeviceInfo
from trivet.engine.ledger import Holding, Ledger
from trivet.optional_contract import DeviceUsage
from trivet_registry.devices_store import save_devices
from trivet_registry.tables import Device, utc_now
from trivet_web.api.device_metrics import MAX_AGE

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

GIB = 1 << 30
NPU = DeviceInfo("ascend", 0, "0000:c1:00.0/0", "Ascend 910B3", "A2", 64 * GIB, 60 * GIB, frozenset({"bf16"}))
CPU = DeviceInfo("cpu", 0, "host", "a CPU", "x86-64", 16 * GIB, 10 * GIB, frozenset({"f32"}))
LOST = DeviceInfo("cuda", 0, "gpu", "a GPU", "", 0, 0, frozenset(), (), "no driver")
USE = DeviceUsage(5 * GIB, 64 * GIB, utilisation_percent=25, temperature_c=36, power_w=91.4)


def figures(client: FlaskClient) -> dict[tuple[str, str], float]:
    """(metric, backend) -> value."""
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").get_data(as_text=True)):
        for sample in family.samples:
            if sample.name.startswith("trivet:device_"):
                found[sample.name.removeprefix("trivet:device_"), sample.labels["backend"]] = sample.value
    return found


@pytest.fixture
def probed(site: Site) -> Site:
    with site.database.session() as session:
        key = NPU.kind, NPU.uid
        held = Ledger([Holding("qwen", "i", NPU.kind, (NPU.uid,), 3 * GIB, is_taken=True)])
        save_devices(session, [NPU, CPU, LOST], held, usage={key: USE})
    return site


def test_a_device_tells_what_its_backend_knows(probed: Site, site_client: FlaskClient) -> None:
    found = {name: value for (name, kind), value in figures(site_client).items() if kind == "ascend"}
    assert found == {
        "usable": 1.0,
        "memory_total_bytes": 64 * GIB,
        "memory_used_bytes": 5 * GIB,
        "memory_reserved_bytes": 3 * GIB,
        "utilisation_ratio": 0.25,
        "temperature_celsius": 36.0,
        "power_watts": 91.4,
    }


def test_where_it_tells_no_use_memory_is_that_of_the_probe(probed: Site, site_client: FlaskClient) -> None:
    found = {name: value for (name, kind), value in figures(site_client).items() if kind == "cpu"}
    assert found["memory_used_bytes"] == 6 * GIB
    assert not {"utilisation_ratio", "temperature_celsius", "power_watts"} & found.keys()


def test_a_device_of_which_nothing_is_known_is_only_unusable(probed: Site, site_client: FlaskClient) -> None:
    found = {name: value for (name, kind), value in figures(site_client).items() if kind == "cuda"}
    assert found == {"usable": 0.0, "memory_reserved_bytes": 0.0}


def test_what_was_probed_long_ago_is_not_told(probed: Site, site_client: FlaskClient) -> None:
    with probed.database.session() as session:
        session.execute(update(Device).values(as_of=utc_now() - MAX_AGE - timedelta(seconds=1)))
    assert figures(site_client) == {}


def test_the_page_is_answered_where_the_registry_cannot_be_read(
    probed: Site, site_client: FlaskClient
) -> None:
    with probed.database.session() as session:
        session.execute(text("DROP TABLE devices"))
    assert figures(site_client) == {}
    assert site_client.get("/metrics").status_code == 200


@pytest.mark.parametrize("reserved_bytes", [0, GIB])
def test_the_made_up_device_is_one_while_something_is_placed_on_it(
    site: Site, site_client: FlaskClient, reserved_bytes: int
) -> None:
    made_up = DeviceInfo("null", 0, "null", "no device", "none", 16 * GIB, 16 * GIB, frozenset({"f32"}))
    holdings = [Holding("m", "i", "null", ("null",), reserved_bytes, is_taken=True)] if reserved_bytes else []
    with site.database.session() as session:
        save_devices(session, [CPU, made_up], Ledger(holdings), usage={})
    kinds = {kind for _, kind in figures(site_client)}
    assert kinds == ({"cpu", "null"} if reserved_bytes else {"cpu"})
