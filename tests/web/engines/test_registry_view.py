"""The routing table from a real registry, and what a registry that fails means for requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from trivet.demo_model import find_demo_model
from trivet.errors import Unavailable
from trivet.models.model_files import open_model
from trivet_registry.deployment_changes import Update, update_deployment
from trivet_registry.deployments_store import create_deployment, get_deployment, stop_deployment
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import move_instance
from trivet_registry.models_store import register_model
from trivet_registry.tables import Instance, Version
from trivet_web.engines.registry_view import table_reader
from trivet_web.web_process import EXTENSION

if TYPE_CHECKING:
    from conftest import Eventually, Site
    from flask.testing import FlaskClient

    from trivet_web.models.served_models import ServedModel

TO_READY = (InstanceState.PLACING, InstanceState.STARTING, InstanceState.READY)
PROMPT = {"model": "demo", "prompt": "x", "max_tokens": 2}


@contextmanager
def broken_registry(site: Site) -> Iterator[None]:
    """Its deployments cannot be read, as after a mishap with the database."""
    with site.database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE deployments RENAME TO elsewhere"))
    yield
    with site.database.engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO deployments"))


def test_registry_that_cannot_be_read_is_unavailable_with_the_reason(site: Site) -> None:
    read = table_reader(site.database)
    assert set(read()) == {"demo"}
    with broken_registry(site), pytest.raises(Unavailable, match="cannot be read: no such table"):
        read()
    assert set(read()) == {"demo"}


def test_a_deployment_whose_row_is_half_written_is_left_out_and_told_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with site.database.session() as session:
        version = get_deployment(session, "demo").version
        create_deployment(session, name="broken", version=version)
    instance = site.add_instance(*TO_READY, name="broken")
    with site.database.engine.begin() as connection:
        connection.execute(text("UPDATE instances SET device_uids = '5' WHERE id = :id"), {"id": instance})
    read = table_reader(site.database)
    for _ in range(3):
        assert set(read()) == {"demo"}
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("deployment=broken left out, its rows cannot be read: TypeError")


def test_inference_goes_on_without_the_registry(
    site: Site, open_client: Callable[..., FlaskClient], served_model: ServedModel
) -> None:
    site.start_engine()
    with broken_registry(site):
        site_client = open_client(site, served_model)  # which has never read it
        response = site_client.post("/v1/completions", json=PROMPT)
        assert (response.status_code, response.get_json()["error"]["code"]) == (503, "unavailable")
        assert "no such table" in response.get_json()["error"]["message"]
    assert site_client.post("/v1/completions", json=PROMPT).status_code == 200
    with broken_registry(site):
        router = site_client.application.extensions[EXTENSION].router
        assert set(router.table(fresh=True)) == {"demo"}  # it has been tried now
        assert site_client.post("/v1/completions", json=PROMPT).status_code == 200
        assert site_client.get("/health/ready").status_code == 200


def test_a_stopped_deployment_is_known_while_its_instance_drains(site: Site) -> None:
    instance = site.add_instance(*TO_READY)
    read = table_reader(site.database)
    with site.database.session() as session:
        stop_deployment(session, "demo")
        move_instance(session, instance, InstanceState.DRAINING, "stop asked for")
    leaving = read()["demo"]
    assert leaving.is_leaving
    assert [row.state for row in leaving.instances] == ["draining"]
    with site.database.session() as session:
        move_instance(session, instance, InstanceState.STOPPING, "it has drained")
        move_instance(session, instance, InstanceState.STOPPED, "its process is gone")
    assert not read()


def test_a_deployment_that_leaves_is_not_listed_and_a_request_is_told(
    site: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    instance = site.add_instance(*TO_READY)
    with site.database.session() as session:
        stop_deployment(session, "demo")
        move_instance(session, instance, InstanceState.DRAINING, "stop asked for")

    def listed() -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = site_client.get("/v1/models").get_json()["data"]
        return data

    eventually(lambda: not listed(), what="the deployment is not listed")
    refused = site_client.post("/v1/completions", json=PROMPT)
    assert refused.status_code == 503
    assert "is draining" in refused.get_json()["error"]["message"]


def test_while_an_update_is_under_way_requests_go_to_one_version(site: Site, tmp_path: Path) -> None:
    """To the one of which more are ready; its tokenizer is the one that is used."""
    older = [site.add_instance(*TO_READY) for _ in range(2)]
    (tmp_path / "newer.gguf").symlink_to(find_demo_model())
    with site.database.session() as session:
        version = register_model(session, open_model(tmp_path / "newer.gguf"), "smollm2")
        update_deployment(session, "demo", Update(version=version))
    read = table_reader(site.database)

    def served() -> tuple[str, list[str]]:
        deployed = read()["demo"]
        return Path(deployed.model_path).name, [row.id for row in deployed.serving]

    old_name = Path(find_demo_model()).name
    newer = [site.add_instance(*TO_READY)]
    assert served() == (old_name, older)
    assert len(read()["demo"].instances) == 3, "all are listened to"
    newer.append(site.add_instance(*TO_READY))
    assert served() == ("newer.gguf", newer)
    with site.database.reading() as session:
        registered = session.get_one(Version, version.id).fingerprint
    assert read()["demo"].files == (str(tmp_path / "newer.gguf"), registered), (
        "by which its tokenizer is kept"
    )
    with site.database.session() as session:
        for instance in newer:
            move_instance(session, instance, InstanceState.FAILED, "broken")
    assert served() == (old_name, older)


def test_a_model_that_loads_says_when_to_come_again(site: Site, site_client: FlaskClient) -> None:
    states = (InstanceState.PLACING, InstanceState.STARTING, InstanceState.LOADING)
    with site.database.session() as session:
        create_deployment(session, name="large", version=get_deployment(session, "demo").version)
    instance = site.add_instance(*states, name="large")
    with site.database.session() as session:
        row = session.get_one(Instance, instance)
        row.state_since -= timedelta(seconds=30)
        row.progress_done, row.progress_total = 60, 100
    refused = site_client.post("/v1/completions", json={**PROMPT, "model": "large"})
    assert (refused.status_code, refused.json["error"]["code"]) == (503, "unavailable")
    assert 20 <= int(refused.headers["Retry-After"]) <= 40  # 30 s for 60 %
    with site.database.session() as session:
        move_instance(session, instance, InstanceState.FAILED, "no such file")
    vain = site_client.post("/v1/completions", json={**PROMPT, "model": "large"})
    assert (vain.status_code, "Retry-After" in vain.headers) == (503, False)
